"""Memory as estimated, against memory as it is."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig

from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import Finished, Started
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.recipe.adapters import FullFineTune
from studio.recipe.dotted_keys import merge
from studio.recipe.precision import PRECISIONS
from studio.services.estimates.activation_memory import BatchShape, TrainingStep
from studio.services.estimates.memory import estimate_from_resolved
from studio.training.memory.process_memory import RESIDENT, MemoryProbe
from studio.training.models import loader
from studio.training.precision import matmul_precision
from studio.weights import model_config, model_facts
from studio.weights.family_limits import FAMILY_LAYERS
from studio.weights.model_facts import ModelFacts
from studio.worker.processes import process
from tests.training import tiny
from tests.training.memory import tiny_configs
from tests.training.memory.test_dry_run import dry, total

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # GPT-2 keeps its matrices the other way round, and peft says that it has noticed.
    pytest.mark.filterwarnings("ignore:fan_in_fan_out"),
]

FULL: dict[str, Any] = {"kind": "full"}
LORA: dict[str, Any] = {"kind": "lora", "r": 4}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp32": ("fp32", FULL),
    "bf16": ("bf16", FULL),
    "bf16_pure": ("bf16_pure", FULL),
    "fp32_lora": ("fp32", LORA),
    "bf16_lora": ("bf16", LORA),
    "bf16_lora16": ("bf16", LORA | {"base_dtype": "bfloat16"}),
    "rounded": ("fp32_bf16_matmul", FULL),
}
PADDED, ALONE, PACKED = (
    BatchShape(3, 37, 37),
    BatchShape(1, 37, 37),
    BatchShape(1, 37, 37, is_packed=True),
)
CASES = [
    *((family, way, PADDED) for family in FAMILY_LAYERS for way in WAYS),
    *(
        (family, way, load)
        for family in FAMILY_LAYERS
        for way in ("fp32", "bf16_lora")
        for load in (ALONE, PACKED)
    ),
]


def recipe(mode: str, adapter: dict[str, Any]) -> Any:  # noqa: ANN401 -- any method's recipe
    changes = {"precision": mode, "adapter": adapter}
    return RECIPE_ADAPTER.validate_python(merge(tiny.RECIPE, changes), strict=False)


def kept(family: str, layers: int, asked: Any, load: BatchShape) -> int:  # noqa: ANN401 -- any method's recipe
    """Count what autograd keeps of a batch, its weights and their copies left aside."""
    told, mode = small(family, layers), PRECISIONS[asked.precision]
    weights = getattr(torch, loader.choose_weight_format("float32", mode, asked.adapter))
    how = loader.attention_implementation(told)
    model = AutoModelForCausalLM.from_config(told, dtype=weights, attn_implementation=how)
    if not isinstance(asked.adapter, FullFineTune):
        model = get_peft_model(model, loader.adapter_config(asked.adapter, model))
        loader.cast_trained_to_float32(model)
    # Told apart by their first side: no weight has as many rows as the batch has tokens.
    found: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        if load.length in tensor.shape or load.tokens in tensor.shape:
            storage = tensor.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = torch.randint(1, 64, (load.batch, load.length))
    mask: Tensor | None = torch.ones_like(ids)
    positions = torch.arange(load.length).repeat(load.batch, 1)
    if load.is_packed:
        mask, positions[:, -1] = None, 0
    elif load.is_padded and mask is not None:
        mask[1:, -1] = 0
    narrow = torch.autocast("cpu", dtype=torch.bfloat16, enabled=mode.autocast is not None)
    inner = model.base_model.model if hasattr(model, "peft_config") else model
    seen = {"attention_mask": mask, "position_ids": positions}
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        matmul_precision.apply_precision(mode, torch.device("cpu")),
        narrow,
    ):
        held = inner.base_model(input_ids=ids, **seen, use_cache=False)
    assert held.last_hidden_state.requires_grad
    return sum(found.values())


def small(family: str, layers: int) -> PreTrainedConfig:
    return tiny_configs.config(family, words=64, hidden=96, inner=200, layers=layers)


def case_name(case: tuple[str, str, BatchShape]) -> str:
    family, way, load = case
    return f"{family}-{way}-{'packed' if load.is_packed else load.batch}"


def aspects(case: tuple[str, str, BatchShape]) -> list[object]:
    """Show on each push every family, in full and with LoRA, and every way and batch."""
    family, way, load = case
    return [(family, "lora" in way), (way, load)]


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_layer_memory_formula_matches_measurement(
    case: tuple[str, str, BatchShape], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The estimate assumes that products in bfloat16 are emulated, which some CPUs need not.
    monkeypatch.setattr(matmul_precision, "measure_operand", lambda _device: "float32")
    family, way, load = case
    asked = recipe(*WAYS[way])
    told = small(family, 1)
    known = ModelFacts(
        family=family, declared_dtype="float32", shape=model_config.read(told.to_dict())
    )
    assert known.shape is not None

    one_more = kept(family, 3, asked, load) - kept(family, 2, asked, load)

    assert TrainingStep(asked, known, known.shape, load, on_gpu=False).layer == one_more


MIDDLING = LlamaConfig(
    vocab_size=16000,
    hidden_size=512,
    intermediate_size=1376,
    num_hidden_layers=6,
    num_attention_heads=8,
    num_key_value_heads=4,
)


@pytest.fixture(scope="module")
def middling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model of 34 million weights: enough for its memory to stand out."""
    return tiny.write_model(tmp_path_factory.mktemp("middling") / "model", MIDDLING)


CHECKPOINTED = {"optimisation__activation_checkpointing": True}
LARGE = {
    "optimisation__per_device_train_batch_size": 8,
    "evaluation__per_device_eval_batch_size": 2,
}
"""Batches whose training takes more than their validation."""
LORA16 = {"adapter__kind": "lora", "adapter__base_dtype": "bfloat16"}


SHORT: dict[str, Any] = {
    "optimisation__max_steps": 2,
    "evaluation__eval_steps": 2.0,
    "numerics__health": False,
}
"""The second step holds all there is to hold, and many machines take 10 s for one in 16 bits."""

OFF = 0.15
"""How much an estimate may miss the peak. On a quiet machine these were at most 6.3 % off."""


# Pure bf16, LoRA in bf16 and int8 take as long as bf16 and nf4 do: their tensors are counted in
# test_memory_formula and test_dry_run.
@pytest.mark.parametrize(
    ("knobs", "is_dry"),
    [
        pytest.param({"precision": "fp32"}, True, id="fp32"),
        pytest.param({"precision": "bf16"}, True, id="bf16"),
        pytest.param({"precision": "bf16"} | LORA16, True, id="narrow_base"),
        pytest.param({"precision": "fp32"} | CHECKPOINTED, True, id="checkpointed"),
        pytest.param(
            {"precision": "fp32", "adapter__kind": "lora"} | CHECKPOINTED | LARGE,
            True,
            id="checkpointed_lora",
        ),
        pytest.param({"precision": "fp32_bf16_matmul"}, False, id="rounded"),
        pytest.param(
            {"precision": "bf16"} | LORA16 | {"adapter__base_dtype": "nf4"}, False, id="nf4"
        ),
    ],
)
def test_run_peak_memory_matches_estimate(
    knobs: dict[str, Any], *, is_dry: bool, middling: Path, tmp_path: Path
) -> None:
    """Of tensors a dry run is exact; the allocator's loss is estimated beside it as ever."""
    run = tiny.write_run(tmp_path / "run", middling, **knobs, **SHORT)
    tiny.write_rows(run.root / "train.jsonl", [talk(i) for i in range(20)])
    counted = dry(tmp_path, run) if is_dry else None
    train_as_worker(run)
    (started,), (finished,) = tiny.events_of(run, Started), tiny.events_of(run, Finished)
    held = finished.metrics["peak_memory_bytes"]

    assert started.resolved["peak_memory"] == RESIDENT
    assert guess(run, middling, started.resolved) == pytest.approx(held, rel=OFF)
    if counted is not None:
        assert total(run, middling, counted) == pytest.approx(held, rel=OFF)


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="no products of 16 bits here"
)
def test_varying_batch_lengths_do_not_grow_peak_memory(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    one_by_one = {
        "optimisation__per_device_train_batch_size": 1,
        "optimisation__train_sampling_strategy": "sequential",
        "optimisation__max_steps": 60,
        "evaluation__logging_steps": 1,
        "evaluation__eval_steps": 60.0,
        "numerics__health": False,
        "precision": "bf16",
    }
    run = tiny.write_run(tmp_path / "run", model, **one_by_one)
    # Longest first: what a step needs, the first ones show.
    lengths = range(100, 20, -1)
    tiny.write_rows(run.root / "train.jsonl", [{"text": "a " * length} for length in lengths])
    train_as_worker(run)

    # Unbounded, caches of compiled kernels make it five times as much.
    early, *_, late = tiny.metric_values(run, "peak_memory_bytes")[9:]
    assert late < 1.5 * early


def train_as_worker(run: RunDir) -> None:
    """Train in a process with the environment that the worker gives it: memory depends on it."""
    command = [sys.executable, "-m", "studio.runner", str(run.root)]
    subprocess.run(command, env=process.environment(None), check=True)


def talk(number: int) -> dict[str, Any]:
    question = {"role": "user", "content": f"Count from {number}."}
    counted = " ".join(map(str, range(number, number + 30)))
    return {"messages": [question, {"role": "assistant", "content": counted}]}


def guess(run: RunDir, model: Path, told: dict[str, Any]) -> int:
    asked = RECIPE_ADAPTER.validate_python(yaml.load(run.recipe.read_text()), strict=False)
    found = estimate_from_resolved(asked, model_facts.read(model), told)
    assert found is not None
    return found.total


def test_memory_probe_counts_only_allocations_after_reset() -> None:
    gauge = MemoryProbe()
    gauge.reset()
    block = torch.ones(25_000_000)
    gone = gauge.peak_bytes()
    del block
    gauge.reset()

    assert gone >= 100_000_000
    assert gauge.peak_bytes() < 50_000_000
