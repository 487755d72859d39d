"""Models that read images learn from them, and nothing else of them changes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from transformers import (
    AutoModelForImageTextToText,
    LlavaProcessor,
    PreTrainedModel,
)

from studio.methods.vision import METHOD, VisionRecipe
from studio.methods.vision.trainer import build, tokenise
from studio.protocols.events import Failed, Finished
from studio.protocols.run_dir import RunDir
from studio.recipe.base import find_conflict
from studio.recipe.exports import ExportKind, ExportSpec
from studio.runner.execution import execute_run
from studio.runner.training_run import load_recipe
from studio.training.data import image_batches, image_messages
from studio.training.data.chat_templates import ChatTemplate
from studio.training.export.exporter import export_run
from studio.training.job import TrainingJob
from studio.training.models import loader, processors, tokenizers
from studio.training.next_token import NextTokenTrainer
from studio.training.stop_handler import StopHandler
from studio.weights import image_text
from tests.support.vision_models import (
    VISION_FAMILIES,
    VisionFamily,
    colour_rows,
    write_vision_model,
)
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.tiny import LORA, Changes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LEARNS: Changes = {
    "optimisation__max_steps": 60,
    "optimisation__learning_rate": 3e-3,
    "optimisation__per_device_train_batch_size": 16,
    "evaluation__eval_steps": 60,
}
LORA_LEARNS: Changes = {
    **LEARNS,
    **LORA,
    "adapter__r": 16,
    # The output layer of a random model is too small for any answer to be certain.
    "adapter__extra_modules": "output",
}
ROWS, HELD_OUT = 200, 40
BATCH = 4


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[VisionFamily], Path]:
    """Return a function that makes a family's model once."""
    root = tmp_path_factory.mktemp("models")

    def make(family: VisionFamily) -> Path:
        folder = root / family
        return folder if folder.exists() else write_vision_model(folder, family)

    return make


@pytest.fixture(params=VISION_FAMILIES)
def family(request: pytest.FixtureRequest) -> VisionFamily:
    name: VisionFamily = request.param
    return name


@pytest.fixture
def model(family: VisionFamily, models: Callable[[VisionFamily], Path]) -> Path:
    return models(family)


def write_run(
    root: Path,
    model: Path,
    changes: Changes | None = None,
    rows: int = 24,
    method: str = "vision",
) -> RunDir:
    settings: Changes = {"method": method, "data__max_length": 256, **(changes or {})}
    run = tiny.write_run(root, model, (), **settings)
    tiny.write_rows(root / "train.jsonl", colour_rows(root / image_messages.FOLDER, rows))
    return run


def train(
    root: Path, model: Path, changes: Changes | None = None, rows: int = 24, method: str = "vision"
) -> RunDir:
    run = write_run(root, model, changes, rows, method)
    execute_run(run.root, StopHandler())
    return run


def built(run: RunDir) -> NextTokenTrainer:
    """Build the trainer of a run."""
    recipe = load_recipe(run)
    assert isinstance(recipe, VisionRecipe)
    job = TrainingJob.prepare(
        recipe, run, lambda _phase: None, tokenise=tokenise, kinds=METHOD.trainable_kinds
    )
    return build(recipe, job)


def load_result(run: RunDir, base: Path) -> PreTrainedModel:
    """Load what a run made as any user would."""
    if (run.artifacts / "adapter_config.json").is_file():
        loaded = AutoModelForImageTextToText.from_pretrained(base, dtype=torch.float32)
        return PeftModel.from_pretrained(loaded, run.artifacts).eval()
    return AutoModelForImageTextToText.from_pretrained(run.artifacts).eval()


def count_right(run: RunDir, base: Path, folder: Path) -> int:
    """Return how many of the held-out images the model names the colour of."""
    model, tokenizer = load_result(run, base), tokenizers.load(str(run.artifacts))
    config = loader.load_config(str(base), kinds=METHOD.trainable_kinds)
    reader = processors.load(str(run.artifacts), config, tokenizer)
    template = ChatTemplate(tokenizer)
    right = 0
    for row in colour_rows(folder, HELD_OUT, seed=7):
        *before, answer = row["messages"]
        ids = tokenizer(template.render_prompt(before), add_special_tokens=False)["input_ids"]
        repeats = image_messages.count_repeats(ids, before, reader.tokens, "A row")
        tokens = torch.tensor([image_messages.repeat(ids, repeats)])
        opened = [image_messages.open_image(folder, one) for one in before[0]["images"]]
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        inputs |= reader.read(opened) | reader.read_types(tokens)
        with torch.no_grad():
            written = model.generate(
                **inputs, do_sample=False, max_new_tokens=8, eos_token_id=template.stop_tokens
            )
        new = written[0, tokens.shape[1] :]
        right += tokenizer.decode(new, skip_special_tokens=True) == answer["content"]
    return right


@pytest.mark.parametrize("changes", [LEARNS, LORA_LEARNS], ids=["full", "lora"])
def test_model_learns_the_colours_of_images(changes: Changes, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, changes, ROWS)
    losses = tiny.metric_values(run, METHOD.objective.key)

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert losses[-1] < 0.3 < losses[0]
    assert count_right(run, model, tmp_path / "held-out") >= 36


def first_batch(trainer: NextTokenTrainer, count: int = BATCH) -> list[dict[str, Tensor]]:
    return [trainer.train_dataset[i] for i in range(count)]


def plain_loss(model: PreTrainedModel, batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss over answer tokens by upstream's plain forward pass."""
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    logits = model(**inputs, use_cache=False).logits[:, :-1].flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten())


def sum_of_losses(trainer: NextTokenTrainer, examples: list[dict[str, Tensor]]) -> float:
    """Return the loss over all answer tokens of a batch, as in a validation."""
    trainer.model.eval()
    one = torch.ones((), dtype=torch.long)
    with torch.no_grad():
        batch = trainer.data_collator(examples)
        loss: float = trainer.compute_loss(trainer.model, batch, num_items_in_batch=one).item()
    return loss


def test_loss_and_gradients_equal_a_plain_forward_pass(model: Path, tmp_path: Path) -> None:
    options: Changes = {"vision__freeze_tower": False, "vision__freeze_projector": False}
    trainer = built(write_run(tmp_path / "run", model, options))
    plain = AutoModelForImageTextToText.from_pretrained(model)
    batch = trainer.data_collator(first_batch(trainer))

    trainer.model.train()
    expected = plain_loss(plain, batch)
    loss = trainer.compute_loss(trainer.model, dict(batch))
    torch.autograd.backward(expected)
    torch.autograd.backward(loss)

    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    gradients = {name: weight.grad for name, weight in trainer.model.named_parameters()}
    for name, weight in plain.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(gradients[name], weight.grad, atol=1e-5, rtol=1e-4)
    trained = [name for name, gradient in gradients.items() if gradient is not None]
    assert {image_text.part_of(name, plain.config.model_type) for name in trained} == {
        None,
        "tower",
        "projector",
    }


def test_loss_of_a_batch_is_that_of_its_rows(model: Path, tmp_path: Path) -> None:
    """Of images of several sizes, and of texts of several lengths."""
    run = write_run(tmp_path / "run", model)
    rows = colour_rows(run.root / image_messages.FOLDER, 12)
    for i, row in enumerate(rows):
        row["messages"][0]["content"] += " Please." * (i % 4)
    tiny.write_rows(run.root / "train.jsonl", rows)
    trainer = built(run)
    examples = first_batch(trainer, 8)

    assert len({len(row["input_ids"]) for row in examples}) > 1
    expected = sum(sum_of_losses(trainer, [row]) for row in examples)
    assert sum_of_losses(trainer, examples) == pytest.approx(expected, rel=1e-5)


def test_rows_with_several_images_and_none_share_a_batch(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model)
    rows = colour_rows(run.root / image_messages.FOLDER, 8)
    for row, other in zip(rows[:3], rows[3:6], strict=True):
        row["messages"][0]["images"] *= 2
        other["messages"][0]["images"] = []
    tiny.write_rows(run.root / "train.jsonl", rows)
    trainer = built(run)
    examples = first_batch(trainer, len(trainer.train_dataset))

    assert {len(row[image_batches.IMAGES]) // 6 for row in examples} == {0, 1, 2}
    expected = sum(sum_of_losses(trainer, [row]) for row in examples)
    assert sum_of_losses(trainer, examples) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["full", "lora"])
@pytest.mark.parametrize("part", ["nothing", "projector", "tower"])
def test_only_chosen_parts_are_trained(kind: str, part: str, model: Path, tmp_path: Path) -> None:
    options: Changes = {"adapter__kind": kind} | {
        f"vision__freeze_{name}": name != part for name in ("tower", "projector")
    }
    trainer = built(write_run(tmp_path / "run", model, options))
    family = trainer.model.config.model_type
    trained = {
        image_text.part_of(name, family)
        for name, weight in trainer.model.named_parameters()
        if weight.requires_grad
    }

    assert trained == {None} | ({part} if part != "nothing" else set())


@pytest.mark.parametrize(
    ("targets", "count"), [({}, 14), ({"adapter__target_modules": "attention"}, 8)]
)
def test_adapter_covers_the_language_model_alone(
    targets: Changes, count: int, model: Path, tmp_path: Path
) -> None:
    trainer = built(write_run(tmp_path / "run", model, LORA | targets))
    names = [name for name, _ in trainer.model.named_modules() if name.endswith("lora_A")]

    assert len(names) == count
    assert all(".language_model.layers." in name for name in names)


def test_frozen_parts_stay_bit_for_bit(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model)
    before, after = (
        AutoModelForImageTextToText.from_pretrained(folder).state_dict()
        for folder in (model, run.artifacts)
    )
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))

    for name, weight in before.items():
        is_frozen = image_text.part_of(name, config["model_type"]) is not None
        assert weight.equal(after[name]) == is_frozen, name


def test_long_rows_are_left_out_and_counted(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model)
    rows = colour_rows(run.root / image_messages.FOLDER, 12)
    for row in rows[::3]:
        row["messages"][0]["content"] *= 80
    tiny.write_rows(run.root / "train.jsonl", rows)
    recipe = load_recipe(run)
    job = TrainingJob.prepare(
        recipe, run, lambda _phase: None, tokenise=tokenise, kinds=METHOD.trainable_kinds
    )

    assert job.train.too_long + job.validation.too_long == 4
    assert job.train.dropped + job.validation.dropped == 4
    assert job.train.longest <= 256 < max(job.train.longest_row, job.validation.longest_row)
    assert job.train.truncated == 0


def test_run_is_refused_if_all_rows_are_too_long(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, {"data__max_length": 16})
    event = tiny.last_event(run)

    assert isinstance(event, Failed)
    assert event.code == "sequence_too_long"
    assert "rows with images are not truncated" in event.message


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16", "bf16_pure"])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_each_precision_trains(kind: str, precision: str, model: Path, tmp_path: Path) -> None:
    if precision == "bf16_pure" and kind == "lora":
        pytest.skip("an adapter is float32")
    run = train(tmp_path / "run", model, {"adapter__kind": kind, "precision": precision})
    event = tiny.last_event(run)

    assert isinstance(event, Finished), event
    assert tiny.metric_values(run, "loss")


def test_resumed_run_equals_an_uninterrupted_one(model: Path, tmp_path: Path) -> None:
    changes = resumed_runs.STEPS | resumed_runs.SAVED | resumed_runs.LORA
    whole = train(tmp_path / "whole", model, changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")
    # The rows lie where they were.
    execute_run(again.root, StopHandler())

    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("kind", ["full", "merged", "adapter"])
def test_export_reads_images_by_itself(kind: ExportKind, model: Path, tmp_path: Path) -> None:
    changes: Changes = {"adapter__kind": "full" if kind == "full" else "lora"}
    run = train(tmp_path / "run", model, changes | {"vision__max_pixels": 1024})
    spec = ExportSpec(run=run.root, kind=kind, dtype="float32")
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    metrics = export_run(folder, spec, load_recipe(run), lambda _event: None)

    assert metrics["loss_after"] == pytest.approx(metrics["loss_before"], abs=1e-4)
    config = json.loads((folder.files / "preprocessor_config.json").read_text(encoding="utf-8"))
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: image-text-to-text" in card
    assert "AutoModelForImageTextToText.from_pretrained" in card
    if "llava" in model.name:
        processor = LlavaProcessor.from_pretrained(folder.files, backend="pil")
        assert processor.image_token == "<image>"  # noqa: S105 -- no password
    else:
        assert config["size"]["longest_edge"] == 1024


def test_other_method_refuses_images_and_such_models(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, method="sft")
    event = tiny.last_event(run)

    assert isinstance(event, Failed)
    assert event.message.startswith("This is an image-text model")


def test_conflicting_settings_are_refused() -> None:
    recipe = tiny.recipe(method="vision", **LORA, adapter__extra_modules="norms")
    conflict = find_conflict(recipe)
    assert conflict is not None
    assert conflict.param == "adapter.extra_modules"

    recipe = tiny.recipe(method="vision", adapter__trained_layers=1, vision__freeze_tower=False)
    conflict = find_conflict(recipe)
    assert conflict is not None
    assert conflict.param == "vision.freeze_tower"
