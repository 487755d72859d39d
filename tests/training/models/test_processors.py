"""Images become the tokens that the model expects, without upstream's own processors."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from transformers import LlavaProcessor, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor

from studio.errors import TrainingError
from studio.training.data import image_messages
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, LabelledRow, label_rows
from studio.training.data.rows import to_training_row
from studio.training.models import loader, processors, tokenizers
from studio.training.models.processors import ImageReader
from studio.weights import architectures
from tests.support.vision_models import (
    QUESTION,
    VISION_FAMILIES,
    VisionFamily,
    colour_rows,
    draw_square,
    save_image,
    seeded,
    write_vision_model,
)
from tests.training import tiny

pytestmark = pytest.mark.slow

KINDS: frozenset[architectures.ModelKind] = frozenset({"image_text"})
SIZES = [(32, 32), (100, 37), (300, 2000), (5, 5), (16, 200), (999, 333), (24, 40)]


@pytest.fixture(scope="module", params=VISION_FAMILIES)
def family(request: pytest.FixtureRequest) -> VisionFamily:
    name: VisionFamily = request.param
    return name


@pytest.fixture(scope="module")
def folder(family: VisionFamily, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vision_model(tmp_path_factory.mktemp("models") / family, family)


@pytest.fixture(scope="module")
def config(folder: Path) -> PreTrainedConfig:
    return loader.load_config(str(folder), kinds=KINDS)


@pytest.fixture
def tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return tokenizers.load(str(folder))


@pytest.fixture
def reader(
    folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase
) -> ImageReader:
    return processors.load(str(folder), config, tokenizer)


def label(row: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> LabelledRow:
    (labelled,) = label_rows(
        [to_training_row(row, 1, "training")], ChatTemplate(tokenizer), tokenizer
    )
    return labelled


def with_images(folder: Path, content: str, *places: int, answer: str = "red") -> dict[str, Any]:
    chance = seeded(1)
    images = [
        save_image(folder / "images", draw_square("red", chance, (32 + 16 * i, 48))) | {"at": place}
        for i, place in enumerate(places)
    ]
    question = {"role": "user", "content": content, "images": images}
    return {"messages": [question, {"role": "assistant", "content": answer}]}


def upstream_ids(
    family: VisionFamily,
    text: str,
    images: list[Image.Image],
    reader: ImageReader,
    tokenizer: PreTrainedTokenizerBase,
) -> list[int]:
    """Tokenise as upstream's own processor, whose constructor may need torchvision."""
    if family == "llava":
        processor = LlavaProcessor(
            reader.image_processor,
            tokenizer,
            patch_size=8,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )
        ids: list[int] = processor(images=images, text=text)["input_ids"][0]
        return ids
    processor = object.__new__(Qwen3VLProcessor)
    processor.image_processor, processor.image_token = reader.image_processor, "<|image_pad|>"
    inputs = reader.image_processor(images=images)
    before, *texts = text.split("<|image_pad|>")
    for i, after in enumerate(texts):
        before += processor.replace_image_token(inputs, i) + after
    plain: list[int] = tokenizer(before, add_special_tokens=False)["input_ids"]
    return plain


@pytest.mark.parametrize("size", SIZES)
def test_image_becomes_as_many_tokens_as_image_processor_makes(
    reader: ImageReader, size: tuple[int, int]
) -> None:
    made = reader.read([draw_square("red", seeded(0), size)])

    if reader.has_grid:
        patches = int(made["image_grid_thw"].prod())
        assert patches == reader.tokens.count_patches(*size)
        assert patches // 4 == reader.tokens.count(*size) <= reader.tokens.most
    else:
        assert made["pixel_values"].shape[-2:] == (32, 32)
        assert reader.tokens.count(*size) == reader.tokens.most == 16


def test_folder_alone_says_how_many_tokens(
    folder: Path, tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig
) -> None:
    before = tokenizers.image_tokens(tokenizer)
    reader = processors.load(str(folder), config, tokenizer)

    assert before == reader.tokens == tokenizers.image_tokens(tokenizer)


def test_row_is_tokenised_as_by_upstream(
    family: VisionFamily,
    tmp_path: Path,
    reader: ImageReader,
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    row = with_images(tmp_path, QUESTION, 0)
    images = [
        image_messages.open_image(tmp_path / "images", image)
        for image in image_messages.images_of(row["messages"])
    ]
    labelled = label(row, tokenizer)

    assert labelled.ids == upstream_ids(family, labelled.text, images, reader, tokenizer)
    trained = [token for token in labelled.labels if token != IGNORE_INDEX]
    assert tokenizer.decode(trained) == "red<|im_end|>"
    assert len(labelled.ids) == len(labelled.labels) == len(labelled.offsets)


def test_images_stand_where_the_row_has_them(
    family: VisionFamily, tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    row = with_images(tmp_path, "Compare  with ", 8, 14, 14)
    labelled = label(row, tokenizer)
    tokens = tokenizers.image_tokens(tokenizer)

    assert tokens is not None
    sizes = [
        tokens.count(image["width"], image["height"]) for image in row["messages"][0]["images"]
    ]
    assert labelled.ids.count(tokens.token_id) == sum(sizes)
    if family != "llava":  # whose template puts images first
        mark = "<|vision_start|><|image_pad|><|vision_end|>"
        assert f"Compare {mark} with {mark}{mark}<|im_end|>" in labelled.text


def test_images_in_an_answer_are_not_trained_on(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    row = with_images(tmp_path, QUESTION, 0)
    row["messages"][1]["images"] = row["messages"][0]["images"]
    labelled = label(row, tokenizer)
    tokens = tokenizers.image_tokens(tokenizer)

    assert tokens is not None
    assert tokens.token_id not in labelled.labels
    assert tokenizer.decode([i for i in labelled.labels if i >= 0]).endswith("red<|im_end|>")


def test_text_that_looks_like_an_image_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens = tokenizers.image_tokens(tokenizer)
    assert tokens is not None
    row = with_images(tmp_path, f"What is {tokenizer.decode([tokens.token_id])}?", 0)

    with pytest.raises(TrainingError, match="Row 1 of the training data has a text that this"):
        label(row, tokenizer)


def test_template_that_leaves_out_images_is_refused(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokenizer.chat_template = tiny.WITHOUT_MARKS.replace(
        "message.content", "(message.content if message.content is string else 'text')"
    )
    with pytest.raises(TrainingError, match=r"Row 1 .* chat template leaves out"):
        label(with_images(tmp_path, QUESTION, 0), tokenizer)


def test_text_model_refuses_images(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="has images, which this model or method"):
        label(with_images(tmp_path, QUESTION, 0), tiny.tokenizer())


def test_limit_scales_images_down(
    folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    reader = processors.load(str(folder), config, tokenizer, max_pixels=1024)
    made = reader.read([draw_square("red", seeded(0), (300, 200))])

    reader.save(tmp_path)
    again = processors.load_image_processor(str(tmp_path))
    other = again(images=[draw_square("red", seeded(0), (300, 200))], return_tensors="pt")
    assert other["pixel_values"].equal(made["pixel_values"])
    if reader.has_grid:
        assert int(made["image_grid_thw"].prod()) // 4 == reader.tokens.count(300, 200) <= 4


def test_too_long_image_is_refused_by_its_row(reader: ImageReader) -> None:
    image = {"sha256": "", "at": 0, "width": 5000, "height": 10}
    turns = [{"role": "user", "content": "", "images": [image]}]
    if reader.has_grid:
        with pytest.raises(TrainingError, match=r"Row 3 .* more than 200 times as long as wide"):
            image_messages.count_repeats(
                [reader.tokens.token_id], turns, reader.tokens, "Row 3 of the training data"
            )


def test_missing_image_processor_is_named(
    folder: Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(TrainingError, match="no usable image processor"):
        processors.load(str(tmp_path), config, tokenizer, offline=True)


def test_missing_or_other_image_is_named(tmp_path: Path) -> None:
    image = save_image(tmp_path, draw_square("red", seeded(0)))

    for broken in ({**image, "sha256": "0" * 64}, {**image, "width": 31}):
        with pytest.raises(TrainingError, match="missing or broken"):
            image_messages.open_image(tmp_path, broken)
    (tmp_path / image["sha256"]).write_bytes(b"no image")
    with pytest.raises(TrainingError, match="missing or broken"):
        image_messages.open_image(tmp_path, image)


def test_turned_image_is_read_as_it_was_imported(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    draw_square("red", seeded(0), (48, 32)).save(tmp_path / "turned", "JPEG", exif=exif)
    image = {"sha256": "turned", "at": 0, "width": 32, "height": 48}

    assert image_messages.open_image(tmp_path, image).size == (32, 48)
    as_stored = image | {"width": 48, "height": 32}
    assert image_messages.open_image(tmp_path, as_stored).size == (48, 32)


def test_model_kind_is_image_text(folder: Path) -> None:
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))

    assert architectures.kind_of(values) == "image_text"
    if values["model_type"] == "llava":
        pixtral = values | {"vision_config": {"model_type": "pixtral"}}
        assert architectures.kind_of(pixtral) == "multimodal"


def test_rows_are_drawn_alike(tmp_path: Path) -> None:
    rows = colour_rows(tmp_path / "images", 3)
    assert rows == colour_rows(tmp_path / "again", 3)
