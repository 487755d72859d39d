"""Supervised fine-tuning on a GPU, in each precision. Needs no package of the web side."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from studio import hardware
from studio.protocols.events import Finished, Started
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.training.precision import matmul_precision
from tests.gpu import separate_runs
from tests.training import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # torchao asks for autocast's format by an old name.
    pytest.mark.filterwarnings("ignore:.*get_autocast_gpu_dtype:DeprecationWarning"),
]

ADAPTED = [mode.name for mode in PRECISIONS.values() if not mode.is_for_all_weights]
"""Modes an adapter goes with."""

CASES = [(name, "full") for name in PRECISIONS] + [(name, "lora") for name in ADAPTED]
QUANTISED: list[tuple[str, PrecisionName, str]] = [
    ("int8", "bf16", "int8"),
    ("int8", "fp16", "int8"),
    ("int8", "fp32", "int8"),
    ("nf4", "bf16", "bfloat16"),
    ("nf4", "fp16", "float16"),
    ("nf4", "fp32", "float32"),
]
"""What is frozen, the precision, and what its products read."""

OPERANDS: list[tuple[PrecisionName, str]] = [
    ("fp32", "float32"),
    ("fp32_tf32", "tf32"),
    ("fp32_bf16_matmul", "bfloat16"),
]


def skip_unless_here(name: PrecisionName) -> None:
    if refusal := PRECISIONS[name].unsupported_reason(hardware.detect()):
        pytest.skip(f"{name} {refusal}")


@pytest.mark.parametrize(("name", "adapter"), CASES)
def test_precision_mode_is_applied_on_gpu(
    name: PrecisionName, adapter: str, tmp_path: Path
) -> None:
    skip_unless_here(name)
    model = tiny.write_model(tmp_path / "model", tiny.llama())

    run = tiny.train(
        tmp_path / "run", model, precision=name, adapter__kind=adapter, samples__prompts=2
    )

    assert isinstance(tiny.last_event(run), Finished), (run.root / "events.jsonl").read_text()
    resolved, mode = tiny.events_of(run, Started)[0].resolved, PRECISIONS[name]
    found = [resolved[key] for key in ("device", "weights", "compute", "gradients", "scaler")]
    assert found == ["cuda", mode.weights, mode.compute, mode.gradients, mode.scaler]
    assert resolved["audit"]["matmul"] == mode.matmul
    losses = tiny.metric_values(run, "loss")
    assert losses[-1] < losses[0]


def test_fp8_training_updates_every_weight(tmp_path: Path) -> None:
    skip_unless_here("fp8")
    model = tiny.write_model(tmp_path / "model", tiny.llama())

    run = tiny.train(tmp_path / "run", model, precision="fp8")

    audit = tiny.events_of(run, Started)[0].resolved["audit"]
    told = [audit[name] for name in ("linear_layers", "linear_gradients", "matmul_emulated")]
    assert told == ["14 of 15 read float8_e4m3fn", "float8_e5m2", False]
    before = load_file(model / "model.safetensors")
    after = load_file(run.artifacts / "model.safetensors")
    assert [name for name in before if torch.equal(before[name], after[name])] == []


@pytest.mark.parametrize(("name", "expected"), OPERANDS)
def test_float32_matmul_operand_format_matches_mode(name: PrecisionName, expected: str) -> None:
    gpu = torch.device("cuda")

    with matmul_precision.apply_precision(PRECISIONS[name], gpu):
        assert matmul_precision.measure_operand(gpu) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_matmul_operand_format_is_detected(dtype: torch.dtype) -> None:
    found = matmul_precision.measure_operand(torch.device("cuda"), dtype, dtype)

    assert found == str(dtype).removeprefix("torch.")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "name", "matmul"), QUANTISED)
def test_adapter_learns_on_quantised_base_model(
    kind: str, name: PrecisionName, matmul: str, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    lora = {"adapter__kind": "lora", "adapter__base_dtype": kind}

    run = tiny.train(tmp_path / "run", model, precision=name, samples__prompts=1, **lora)

    assert isinstance(tiny.last_event(run), Finished), (run.root / "events.jsonl").read_text()
    audit = tiny.events_of(run, Started)[0].resolved["audit"]
    found = [audit[key] for key in ("weights", "trained", "compute", "matmul")]
    assert found == [kind, "float32", PRECISIONS[name].compute, matmul]
    losses = tiny.metric_values(run, "loss")
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("adapter", ["full", "lora"])
@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_offloaded_activations_change_no_loss(
    adapter: str, tmp_path: Path, *, is_checkpointed: bool
) -> None:
    """They take less of the GPU's memory, unless only the inputs of layers are kept anyway."""
    config = tiny.llama()
    config.update({"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 8})
    model = tiny.write_model(tmp_path / "model", config)
    changes = {
        "precision": "bf16",
        "adapter__kind": adapter,
        "optimisation__activation_checkpointing": is_checkpointed,
        "optimisation__per_device_train_batch_size": 16,
        "numerics__health": False,
    }
    runs = []
    for offloading in (False, True):
        changes["optimisation__activation_offloading"] = offloading
        runs.append(separate_runs.train(tmp_path / f"run-{offloading}", model, **changes))

    assert tiny.metric_values(runs[0], "loss") == tiny.metric_values(runs[1], "loss")
    assert tiny.events_of(runs[1], Started)[0].resolved["activations"] == "host"
    kept, offloaded = (max(tiny.metric_values(run, "peak_memory_bytes")) for run in runs)
    assert offloaded < kept or is_checkpointed
