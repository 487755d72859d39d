"""What an image becomes, from the settings of models as they are published."""

import json
from pathlib import Path
from typing import Any

import pytest

from studio.weights import image_text
from studio.weights.image_text import UnreadableImageError

LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "image_token_index": 32000,
    "text_config": {"model_type": "llama", "vocab_size": 32064},
    "vision_config": {"model_type": "clip_vision_model", "patch_size": 14, "image_size": 336},
    "vision_feature_select_strategy": "default",
}
"""As LLaVA 1.5."""
LLAVA_IMAGES: dict[str, Any] = {
    "crop_size": {"height": 336, "width": 336},
    "do_center_crop": True,
    "size": {"shortest_edge": 336},
}
QWEN: dict[str, Any] = {"model_type": "qwen2_vl", "image_token_id": 151655, "hidden_size": 1536}
QWEN_IMAGES: dict[str, Any] = {
    "min_pixels": 3136,
    "max_pixels": 12845056,
    "patch_size": 14,
    "merge_size": 2,
}
"""As Qwen2-VL."""
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "image_token_id": 151655,
    "text_config": {"model_type": "qwen3_vl_text", "hidden_size": 2048},
}
QWEN3_IMAGES: dict[str, Any] = {
    "size": {"longest_edge": 16777216, "shortest_edge": 65536},
    "patch_size": 16,
    "merge_size": 2,
}


@pytest.mark.parametrize(
    ("config", "images", "size", "count"),
    [
        (LLAVA, LLAVA_IMAGES, (1024, 768), 576),
        (LLAVA | {"vision_feature_select_strategy": "full"}, LLAVA_IMAGES, (5, 5), 577),
        (LLAVA, {"size": {"height": 224, "width": 224}}, (1024, 768), 256),
        (QWEN, QWEN_IMAGES, (1024, 768), 999),
        (QWEN, QWEN_IMAGES, (28, 28), 4),
        (QWEN3, QWEN3_IMAGES, (1024, 768), 768),
        (QWEN3, QWEN3_IMAGES, (20, 20), 64),
    ],
)
def test_image_becomes_tokens(
    config: dict[str, Any], images: dict[str, Any], size: tuple[int, int], count: int
) -> None:
    tokens = image_text.read(config, images)

    assert tokens is not None
    assert tokens.count(*size) == count
    assert tokens.count(*size) <= tokens.most


def test_limit_of_pixels_makes_fewer_tokens() -> None:
    tokens = image_text.read(QWEN, QWEN_IMAGES)
    fixed = image_text.read(LLAVA, LLAVA_IMAGES)
    assert tokens is not None
    assert fixed is not None

    assert tokens.limited(262_144).count(1024, 768) == 315 <= 262_144 // 28**2
    assert tokens.limited(10**9).max_pixels == tokens.max_pixels
    assert tokens.limited(1).count(1024, 768) == 2
    assert fixed.limited(1) == fixed


def test_elongated_image_is_refused_with_its_size() -> None:
    tokens = image_text.read(QWEN, QWEN_IMAGES)
    assert tokens is not None
    with pytest.raises(UnreadableImageError, match="4,030 by 20 pixels"):
        tokens.count(4030, 20)


@pytest.mark.parametrize(
    ("config", "images"),
    [
        (LLAVA, {}),
        (LLAVA, {"size": "large"}),
        (LLAVA | {"vision_config": {"model_type": "pixtral"}}, LLAVA_IMAGES),
        (LLAVA | {"vision_config": 7}, LLAVA_IMAGES),
        (QWEN, {"patch_size": 0}),
        (QWEN, {"patch_size": True}),
        (QWEN, {"merge_size": [2]}),
        (QWEN | {"image_token_id": "x"}, QWEN_IMAGES),
        ({"model_type": "llama"}, LLAVA_IMAGES),
        ({}, {}),
    ],
)
def test_unusable_settings_give_no_tokens(config: dict[str, Any], images: dict[str, Any]) -> None:
    assert image_text.read(config, images) is None


def test_nested_settings_count_more_than_the_older_file(tmp_path: Path) -> None:
    files = {
        "config.json": QWEN,
        "preprocessor_config.json": QWEN_IMAGES,
        "processor_config.json": {"image_processor": QWEN_IMAGES | {"max_pixels": 4096}},
    }
    for name, values in files.items():
        (tmp_path / name).write_text(json.dumps(values), encoding="utf-8")
    tokens = image_text.read_folder(tmp_path)

    assert tokens is not None
    assert tokens.max_pixels == 4096


@pytest.mark.parametrize("content", ["", "[]", "{", "[" * 100_000])
def test_broken_files_give_no_tokens(content: str, tmp_path: Path) -> None:
    for name in ("config.json", "preprocessor_config.json"):
        (tmp_path / name).write_text(content, encoding="utf-8")
    assert image_text.read_folder(tmp_path) is None
    assert image_text.read_folder(tmp_path / "missing") is None


@pytest.mark.parametrize(
    ("family", "path", "part"),
    [
        ("llava", "model.vision_tower.encoder.layers.0.mlp.fc1.weight", "tower"),
        ("llava", "vision_tower.vision_model.embeddings.class_embedding", "tower"),
        ("llava", "base_model.model.model.multi_modal_projector.linear_1", "projector"),
        ("llava", "language_model.model.layers.0.mlp.up_proj.weight", None),
        ("qwen2_vl", "visual.blocks.0.attn.qkv.weight", "tower"),
        ("qwen2_vl", "visual.merger.mlp.0.weight", "projector"),
        ("qwen2_vl", "model.layers.0.mlp.up_proj.weight", None),
        ("qwen3_vl", "model.visual.deepstack_merger_list.0.norm.weight", "projector"),
        ("qwen3_vl", "model.language_model.layers.0.mlp.up_proj.weight", None),
        ("qwen3_vl", "lm_head.weight", None),
        ("llama", "model.visual.blocks.0.weight", None),
    ],
)
def test_weights_are_sorted_by_part(family: str, path: str, part: str | None) -> None:
    assert image_text.part_of(path, family) == part


def test_language_model_is_read_from_inside() -> None:
    assert image_text.flatten(LLAVA)["vocab_size"] == 32064
    assert image_text.flatten(LLAVA)["model_type"] == "llava"
    assert image_text.flatten(QWEN) == QWEN
    assert image_text.language_family(LLAVA) == "llama"
    assert image_text.language_family(QWEN3) == "qwen3"
    assert image_text.language_family({"model_type": "llama"}) == ""
