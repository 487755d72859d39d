"""What a conversion does to weights, on tensors whose loss is known beforehand."""

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, RwkvConfig

from studio.training.export import dtype_conversion
from studio.training.export.dtype_conversion import ConversionStats, ShardLayout
from tests.training import tiny

pytestmark = pytest.mark.slow


def changed(weights: Tensor, to: torch.dtype) -> dict[str, float]:
    change = ConversionStats()
    change.add(weights, weights.to(to))
    return change.metrics()


def converted(folder: Path, to: torch.dtype, limit: int, **tensors: Tensor) -> ConversionStats:
    save_file(tensors, folder / "source.safetensors")
    shards = ShardLayout(folder, "out", limit)
    source = [folder / "source.safetensors"]
    return dtype_conversion.convert_files(
        source, shards, to, lambda name: name == "kept", lambda _share: None
    )


def test_float16_overflow_is_counted() -> None:
    told = changed(torch.tensor([70000.0, -70000.0, 65519.0, 1.0]), torch.float16)

    assert (told["overflowed_weights"], told["changed_weights"]) == (2, 1)
    assert told["max_relative_change"] == pytest.approx((65519 - 65504) / 65519)


def test_bfloat16_does_not_overflow_where_float16_does() -> None:
    assert changed(torch.tensor([70000.0, 1e38]), torch.bfloat16)["overflowed_weights"] == 0


def test_underflowed_weights_count_as_full_relative_change() -> None:
    told = changed(torch.tensor([2.0**-24, 2.0**-25, -(2.0**-26), 0.0]), torch.float16)

    assert (told["underflowed_weights"], told["max_relative_change"]) == (2, 1.0)
    assert told["mean_relative_change"] == pytest.approx(2 / 3)


def test_subnormal_numbers_lose_precision_but_do_not_underflow() -> None:
    told = changed(torch.tensor([1.5 * 2.0**-24, 3.25 * 2.0**-24]), torch.float16)

    assert told["underflowed_weights"] == 0
    assert told["max_relative_change"] == pytest.approx(0.5 / 1.5)


def test_nonfinite_source_weights_are_not_counted_as_conversion_loss() -> None:
    told = changed(torch.tensor([math.nan, math.inf, 1.0]), torch.float16)

    assert (told["weights"], told["overflowed_weights"], told["max_relative_change"]) == (3, 0, 0.0)


def test_mean_relative_change_matches_theory() -> None:
    # Rounding to 8 bits errs by 2**-9 of the power of two on average; over weights whose logarithm
    # is spread evenly, 1 / mantissa is 1 / (2 ln 2) on average.
    weights = torch.logspace(-10, 10, 200_001, base=2, dtype=torch.float32)

    told = changed(weights, torch.bfloat16)

    assert told["mean_relative_change"] == pytest.approx(2**-9 / (2 * math.log(2)), rel=0.01)
    assert told["max_relative_change"] == pytest.approx(2**-8 / (1 + 2**-8), rel=0.01)


def test_chunked_stats_equal_stats_of_whole_tensor() -> None:
    weights = torch.linspace(-3, 70000, 1001)
    pieces = ConversionStats(chunk_weights=100)
    pieces.add(weights, weights.half())

    assert pieces.metrics() == pytest.approx(changed(weights, torch.float16))


def test_large_weights_are_written_as_shards_with_index(tmp_path: Path) -> None:
    one, two = torch.full((4, 4), 1.5), torch.full((4, 4), 2.5)
    converted(tmp_path, torch.bfloat16, 32, one=one, two=two)

    index = json.loads((tmp_path / "out.safetensors.index.json").read_text(encoding="utf-8"))
    assert index["weight_map"] == {
        "one": "out-00001-of-00002.safetensors",
        "two": "out-00002-of-00002.safetensors",
    }
    assert index["metadata"]["total_size"] == 64
    written = load_file(tmp_path / index["weight_map"]["two"])["two"]
    assert (written.dtype, written.float().equal(two)) == (torch.bfloat16, True)


def test_integer_and_kept_tensors_are_not_converted(tmp_path: Path) -> None:
    kept, places = torch.tensor([1.0000001]), torch.arange(3)
    change = converted(tmp_path, torch.float16, 10**6, kept=kept, places=places)

    written = load_file(tmp_path / "out.safetensors")
    assert (written["kept"].equal(kept), written["places"].equal(places)) == (True, True)
    assert (change.weights, change.kept) == (1, 1)


def test_weights_required_in_float32_are_kept_in_float32() -> None:
    config = RwkvConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, context_length=8)
    names = dict(AutoModelForCausalLM.from_config(config).named_parameters())
    keep = dtype_conversion.float32_filter(config, torch.float16)

    kept = {name.rpartition(".")[2] for name in names if keep(name)}
    assert kept == {"time_decay", "time_first"}


def test_llama_keeps_no_weight_in_float32() -> None:
    names = dict(AutoModelForCausalLM.from_config(tiny.llama()).named_parameters())
    keep = dtype_conversion.float32_filter(tiny.llama(), torch.float16)

    assert [name for name in names if keep(name)] == []
