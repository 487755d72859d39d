"""What is known of a model before it is loaded."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError
from studio.weights import model_facts, safetensors_headers, weight_samples
from tests.unit.weights import safetensors_folders


def test_model_facts_describe_weights(tmp_path: Path) -> None:
    values: safetensors_folders.Values = {
        "a": ("BF16", [0.5, -2.0, 1.0]),
        "b": ("F32", [0.25]),
        "mask": ("I64", [1, 1]),
    }
    found = model_facts.read(safetensors_folders.write(tmp_path, values, dtype="bfloat16"))

    assert (
        found.family,
        found.main_dtype,
        found.declared_dtype,
        found.parameters,
        found.stored,
    ) == (
        "llama",
        "bfloat16",
        "bfloat16",
        4,
        {"bfloat16": 0.75, "float32": 0.25},
    )
    assert (found.stats.largest, found.stats.sampled) == (2.0, 4)


@pytest.mark.parametrize(
    ("config", "declared", "disagrees"),
    [
        ({"dtype": "float16"}, "float16", True),
        ({"torch_dtype": "float32"}, "float32", False),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16", True),
        ({"dtype": "os.system"}, "", False),
        ({}, "", False),
    ],
)
def test_config_dtype_mismatch_is_detected(
    tmp_path: Path, config: dict[str, Any], declared: str, *, disagrees: bool
) -> None:
    found = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("F32", [1.0])}, **config))

    assert (found.declared_dtype, found.has_dtype_mismatch, found.main_dtype) == (
        declared,
        disagrees,
        "float32",
    )


@pytest.mark.parametrize("name", ["llama\nimport os", "x" * 65, 7, ["llama"]])
@pytest.mark.parametrize("inside", [False, True])
def test_invalid_family_name_is_rejected(tmp_path: Path, name: object, inside: bool) -> None:  # noqa: FBT001 -- a parameter of the test
    told = {"text_config": {"model_type": name}} if inside else {"model_type": name}
    with pytest.raises(InvalidError, match="has an invalid model_type"):
        model_facts.read(safetensors_folders.write(tmp_path, {"a": ("F32", [1.0])}, **told))


def test_missing_family_is_accepted(tmp_path: Path) -> None:
    found = model_facts.read(
        safetensors_folders.write(tmp_path, {"a": ("F32", [1.0])}, model_type=None)
    )

    assert found.family == ""


def test_deeply_nested_config_is_rejected(tmp_path: Path) -> None:
    safetensors_folders.write(tmp_path, {"a": ("F32", [1.0])})
    deep = '{"model_type": "llama", "x": ' + "[" * 40 + "]" * 40 + "}"
    (tmp_path / "config.json").write_text(deep)
    with pytest.raises(InvalidError, match="is nested too deeply"):
        model_facts.read(tmp_path)


def test_float64_layers_in_mixed_model_are_named(tmp_path: Path) -> None:
    values = {"a": ("F32", [1.0]), "b": ("F64", [1.0]), "c": ("F64", [1e300])}
    found = model_facts.read(safetensors_folders.write(tmp_path, values))

    assert (found.mixed_float64, found.stats.over_float16) == (("b", "c"), 1)


def test_pure_float64_model_is_not_mixed(tmp_path: Path) -> None:
    found = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("F64", [1.0])}))

    assert (found.mixed_float64, found.float64_layers) == ((), ("a",))


def test_weights_out_of_float16_range_are_counted(tmp_path: Path) -> None:
    values = [65504.0, 65505.0, -70000.0, 2.0**-24, 2.0**-25, 0.0, 1.0, 1.0]
    found = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("F32", values)})).stats

    assert (found.over_float16, found.largest, found.below_float16) == (2, 70000.0, 1 / 8)


def test_non_finite_weights_are_counted(tmp_path: Path) -> None:
    values = [math.nan, math.inf, -math.inf, 3.0]
    found = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("F32", values)})).stats

    assert (found.not_finite, found.largest, found.over_float16) == (3, 3.0, 0)


@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16"])
def test_every_weight_format_is_read_equally(tmp_path: Path, code: str) -> None:
    values = [0.0, 0.5, -0.75, 1.5, 2.0**-14]
    found = model_facts.read(safetensors_folders.write(tmp_path, {"a": (code, values)})).stats

    assert (found.largest, found.exponent_shares) == (1.5, {-14: 0.2, -1: 0.4, 0: 0.2})


def test_stalled_share_matches_bfloat16_rounding(tmp_path: Path) -> None:
    """A weight steps by 1e-4 and is rounded: those that come back to themselves have stalled."""
    values = [bfloat16(0.15 * math.sin(i) ** 3) for i in range(4000)]
    found = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("BF16", values)}))

    still = [one for one in values if bfloat16(one + math.copysign(1e-4, one)) == one]
    assert found.stalled_share(1e-4) == pytest.approx(len(still) / len(values), abs=0.002)


def test_larger_learning_rates_stall_fewer_weights(tmp_path: Path) -> None:
    values = [2.0**-power for power in range(12)]
    found = model_facts.read(safetensors_folders.write(tmp_path, {"a": ("BF16", values)}))

    assert [round(found.stalled_share(rate) * 12) for rate in (1e-7, 1e-5, 1e-3, 1.0)] == [
        12,
        9,
        2,
        0,
    ]


def test_adapter_features_count_only_inner_linear_layers(tmp_path: Path) -> None:
    shapes = {
        "model.embed_tokens.weight": ("BF16", [100, 8]),
        "model.layers.0.self_attn.q_proj.weight": ("BF16", [8, 8]),
        "model.layers.0.mlp.up_proj.weight": ("BF16", [24, 8]),
        "model.layers.0.input_layernorm.weight": ("BF16", [8]),
        "transformer.wpe.weight": ("BF16", [64, 8]),
        "lm_head.weight": ("BF16", [100, 8]),
    }
    found = model_facts.read(
        safetensors_folders.write_empty(tmp_path, shapes, vocab_size=100, n_positions=64)
    )

    assert found.linear_features == 8 + 8 + 24 + 8


def test_layers_unfit_for_float8_are_named(tmp_path: Path) -> None:
    shapes = {
        "model.embed_tokens.weight": ("BF16", [100, 32]),
        "model.layers.0.self_attn.q_proj.weight": ("BF16", [48, 32]),
        "model.layers.0.mlp.up_proj.weight": ("BF16", [40, 32]),
        "model.layers.0.mlp.down_proj.weight": ("BF16", [32, 40]),
        "model.layers.0.mlp.gate.weight": ("BF16", [4, 32]),
        "model.layers.0.input_layernorm.weight": ("BF16", [33]),
        "lm_head.weight": ("BF16", [100, 32]),
    }
    found = model_facts.read(safetensors_folders.write_empty(tmp_path, shapes, vocab_size=100))

    assert found.float8_unfit_layers == (
        "model.layers.0.mlp.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    )


def test_layers_without_adapter_are_not_counted(tmp_path: Path) -> None:
    shapes = {
        "backbone.layers.0.mixer.in_proj.weight": ("BF16", [24, 8]),
        "backbone.layers.0.mixer.out_proj.weight": ("BF16", [8, 24]),
    }
    found = model_facts.read(
        safetensors_folders.write_empty(tmp_path, shapes, vocab_size=100, model_type="mamba")
    )

    assert found.linear_features == 24 + 8


def test_weight_sample_stays_small_for_many_tensors(tmp_path: Path) -> None:
    shapes = {f"a{i}": ("BF16", [1000]) for i in range(20_000)}
    found = model_facts.read(safetensors_folders.write_empty(tmp_path, shapes))

    every_other = weight_samples.MAX_VALUES // 10_000 * 10_000
    assert (found.stats.sampled, found.parameters) == (every_other, 20_000_000)


def test_config_without_weights_gives_only_declared_facts(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "dtype": "bfloat16", "quantization_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = model_facts.read(tmp_path)

    assert (found.has_weights, found.main_dtype, found.stats.largest) == (False, "bfloat16", None)
    assert found == model_facts.from_config(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "[" * 100_000])
def test_invalid_config_is_rejected(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)

    with pytest.raises(InvalidError):
        model_facts.read(tmp_path)


def test_source_files_are_config_and_weights(tmp_path: Path) -> None:
    folder = safetensors_folders.write(tmp_path, {"a": ("F32", [1.0])})

    assert model_facts.source_files(folder) == [
        folder / "config.json",
        folder / safetensors_headers.WEIGHTS_FILE,
    ]


def bfloat16(value: float) -> float:
    """Round to the nearest bfloat16, to even where two are as near."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(round(mantissa * 256) / 256, exponent)


@pytest.mark.parametrize(
    "told",
    [
        {"num_hidden_layers": 10**9},
        {"num_attention_heads": 0},
        {"hidden_size": 0},
        {"vocab_size": 0},
        {"text_config": {"num_key_value_heads": 0}},
        {"vocab_size": 1e10},
        {"hidden_size": -64},
        {"hidden_size": True},
        {"hidden_size": "64"},
        {"text_config": {"num_hidden_layers": 10**9}},
    ],
)
def test_impossible_config_numbers_are_rejected(tmp_path: Path, told: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(told))
    with pytest.raises(InvalidError, match="which is not valid"):
        model_facts.read(tmp_path)
