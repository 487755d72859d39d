"""Image-text models small enough to train in seconds, and images for them, without a network."""

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForImageTextToText,
    LlavaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2_5_VLConfig,
    Qwen2VLConfig,
    Qwen3VLConfig,
)

VisionFamily = Literal["llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl"]
VISION_FAMILIES: tuple[VisionFamily, ...] = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")

COLOURS = {
    "red": (220, 20, 20),
    "green": (20, 200, 20),
    "blue": (20, 20, 220),
    "yellow": (230, 220, 20),
}
QUESTION = "What colour is it?"

_SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<image>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
_CONTENT = (
    "{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}"
)
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}CONTENT"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
_LISTS_ALONE = (
    "{% for part in message.content | selectattr('type', 'equalto', 'image') %}<image>\n"
    "{% endfor %}"
    "{% for part in message.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}"
    "{% endfor %}"
)
"""As in LLaVA 1.5's own template: images first, and content that is text is left out."""

_TEXT: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_ROPE = {"rope_type": "default", "mrope_section": [2, 3, 3], "rope_theta": 10000.0}
_QWEN_TOWER: dict[str, Any] = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 8,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "in_channels": 3,
}


def write_vision_model(
    folder: Path, family: VisionFamily, *, lists_alone: bool = True, words: int | None = None
) -> Path:
    """Save a random model of a family, with its tokenizer and image processor.

    `words` is the size of its vocabulary, if that has more than the tokenizer's.
    `lists_alone` gives a LLaVA the template of the original, which renders content only if it is a
    list of parts.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForImageTextToText.from_config(_config(family, words)).save_pretrained(folder)
    tokenizer = _tokenizer()
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    content = _CONTENT.replace("IMAGE", image)
    if family == "llava":
        content = _LISTS_ALONE if lists_alone else _CONTENT.replace("IMAGE", "<image>")
    tokenizer.chat_template = _TEMPLATE.replace("CONTENT", content)
    tokenizer.save_pretrained(folder)
    files = _llava_files() if family == "llava" else _qwen_files(family)
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values, indent=2), encoding="utf-8")
    return folder


def _tokenizer() -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    learner = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator([*COLOURS, QUESTION, "user", "assistant"], learner)
    made = PreTrainedTokenizerFast(tokenizer_object=inner)
    made.add_special_tokens({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})
    return made


def _config(family: VisionFamily, words: int | None) -> PreTrainedConfig:
    vocabulary = {"vocab_size": words or len(_tokenizer())}
    if family == "llava":
        return LlavaConfig(
            vision_config={
                "model_type": "clip_vision_model",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "image_size": 32,
                "patch_size": 8,
            },
            text_config={"model_type": "llama", **_TEXT, **vocabulary},
            image_token_id=_SPECIAL.index("<image>"),
            image_seq_length=16,
            vision_feature_layer=-2,
            vision_feature_select_strategy="default",
            pad_token_id=0,
            eos_token_id=2,
        )
    tokens = {
        "image_token_id": _SPECIAL.index("<|image_pad|>"),
        "video_token_id": _SPECIAL.index("<|video_pad|>"),
        "vision_start_token_id": _SPECIAL.index("<|vision_start|>"),
        "vision_end_token_id": _SPECIAL.index("<|vision_end|>"),
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": 2,
    }
    text = {**_TEXT, **vocabulary, "rope_parameters": _ROPE}
    match family:
        case "qwen2_vl":
            tower = {**_QWEN_TOWER, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2}
            return Qwen2VLConfig(vision_config=tower, text_config=text, **tokens)
        case "qwen2_5_vl":
            tower = {
                **_QWEN_TOWER,
                "hidden_size": 32,
                "out_hidden_size": 64,
                "intermediate_size": 64,
                "window_size": 32,
                "fullatt_block_indexes": [1],
            }
            return Qwen2_5_VLConfig(vision_config=tower, text_config=text, **tokens)
        case _:
            tower = {
                **_QWEN_TOWER,
                "hidden_size": 32,
                "out_hidden_size": 64,
                "intermediate_size": 64,
                "num_position_embeddings": 16,
                "deepstack_visual_indexes": [0],
            }
            text["rope_parameters"] = {**_ROPE, "mrope_interleaved": True}
            text["head_dim"] = 16
            return Qwen3VLConfig(vision_config=tower, text_config=text, **tokens)


def _llava_files() -> dict[str, Mapping[str, Any]]:
    return {
        "preprocessor_config.json": {
            "image_processor_type": "CLIPImageProcessor",
            "processor_class": "LlavaProcessor",
            "crop_size": {"height": 32, "width": 32},
            "size": {"shortest_edge": 32},
            "do_center_crop": True,
            "do_convert_rgb": True,
            "do_normalize": True,
            "do_rescale": True,
            "do_resize": True,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.3, 0.3, 0.3],
            "resample": 3,
            "rescale_factor": 1 / 255,
        },
        "processor_config.json": {
            "processor_class": "LlavaProcessor",
            "image_token": "<image>",
            "num_additional_image_tokens": 1,
            "patch_size": 8,
            "vision_feature_select_strategy": "default",
        },
    }


def _qwen_files(family: VisionFamily) -> dict[str, Mapping[str, Any]]:
    classes = {
        "qwen2_vl": "Qwen2VLProcessor",
        "qwen2_5_vl": "Qwen2_5_VLProcessor",
        "qwen3_vl": "Qwen3VLProcessor",
    }
    kind = "Qwen2VLImageProcessorFast" if family == "qwen3_vl" else "Qwen2VLImageProcessor"
    sizes = {"min_pixels": 256, "max_pixels": 16384}
    if family == "qwen3_vl":
        sizes = {"size": {"shortest_edge": 256, "longest_edge": 16384}}  # type: ignore[dict-item] # as in its files
    return {
        "preprocessor_config.json": {
            "image_processor_type": kind,
            "processor_class": classes[family],
            **sizes,
            "patch_size": 8,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "image_mean": [0.5, 0.5, 0.5],
            "image_std": [0.5, 0.5, 0.5],
        }
    }


def seeded(seed: int) -> random.Random:
    """Return a source of chance that is the same each time."""
    return random.Random(seed)  # noqa: S311 -- images for tests


def draw_square(name: str, chance: random.Random, size: tuple[int, int] = (32, 32)) -> Image.Image:
    """Return an image of one colour, a little different each time."""
    shade = tuple(max(0, min(255, value + chance.randint(-20, 20))) for value in COLOURS[name])
    return Image.new("RGB", size, shade)


def save_image(folder: Path, image: Image.Image) -> dict[str, Any]:
    """Save an image as a dataset version does. Return what a turn says of it."""
    new = folder / "new.png"
    folder.mkdir(parents=True, exist_ok=True)
    image.save(new, format="PNG")
    name = hashlib.sha256(new.read_bytes()).hexdigest()
    new.replace(folder / name)
    return {"sha256": name, "at": 0, "width": image.width, "height": image.height}


def colour_rows(
    folder: Path,
    count: int,
    *,
    seed: int = 0,
    sizes: Sequence[tuple[int, int]] = ((32, 32), (48, 32), (32, 64)),
) -> list[dict[str, Any]]:
    """Save images of squares in a folder. Return rows that ask for their colour."""
    chance = seeded(seed)
    rows = []
    for _ in range(count):
        name = chance.choice(list(COLOURS))
        image = save_image(folder, draw_square(name, chance, chance.choice(list(sizes))))
        question = {"role": "user", "content": QUESTION, "images": [image]}
        rows.append({"messages": [question, {"role": "assistant", "content": name}]})
    return rows
