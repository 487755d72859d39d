"""Each mode beside its plan: what was audited, and what stops a run that is otherwise."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from studio.errors import TrainingError
from studio.protocols.events import Failed, Finished, Started
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.runner import training_run
from studio.training.models import loader
from studio.training.precision import matmul_precision
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

CPU = torch.device("cpu")


def audited(run: RunDir) -> dict[str, Any]:
    audit: dict[str, Any] = tiny.events_of(run, Started)[0].resolved["audit"]
    return audit


def prepared(model: Path, root: Path, **changes: object) -> training_run.TrainingRun:
    run = tiny.write_run(root, model, **changes)
    return training_run.prepare(run, run.events.append, StopHandler())


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model that was saved in bfloat16."""
    config = tiny.llama()
    config.dtype = torch.bfloat16
    return tiny.write_model(tmp_path_factory.mktemp("narrow") / "model", config)


@pytest.mark.parametrize(
    ("inputs", "weights", "expected"),
    [
        (torch.float32, torch.float32, "float32"),
        (torch.bfloat16, torch.bfloat16, "bfloat16"),
        (torch.float16, torch.float16, "float16"),
    ],
)
def test_matmul_operand_format_is_detected(
    inputs: torch.dtype, weights: torch.dtype, expected: str
) -> None:
    assert matmul_precision.measure_operand(CPU, inputs, weights) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matmul_format_under_autocast_is_detected(dtype: torch.dtype) -> None:
    with torch.autocast("cpu", dtype):
        found = matmul_precision.measure_operand(CPU)

    assert found == str(dtype).removeprefix("torch.")


def test_emulated_matmul_reads_bfloat16() -> None:
    with matmul_precision.apply_precision(PRECISIONS["fp32_bf16_matmul"], CPU):
        assert matmul_precision.measure_operand(CPU) == "bfloat16"


@pytest.mark.parametrize("operand", ["float32", None], ids=["emulated", "as this CPU does"])
def test_matmul_rounds_forward_and_backward(
    operand: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU that reads bfloat16 itself adds up in another order."""
    if operand:
        monkeypatch.setattr(matmul_precision, "measure_operand", lambda _device: operand)
    die, size = torch.Generator().manual_seed(0), matmul_precision.PROBE_SIZE
    x, w = (torch.randn(size, size, generator=die, requires_grad=True) for _ in range(2))
    with matmul_precision.apply_precision(PRECISIONS["fp32_bf16_matmul"], CPU):
        y = x @ w
        (gradient,) = torch.autograd.grad(y, x, y.detach())

    wide_x, wide_w = x.detach().bfloat16().float(), w.detach().bfloat16().float()
    torch.testing.assert_close(y, wide_x @ wide_w, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(y, x @ w, rtol=1e-4, atol=1e-2)
    wide_gradient = y.detach().bfloat16().float() @ wide_w.T
    torch.testing.assert_close(gradient, wide_gradient, rtol=1e-4, atol=1e-2)


def test_run_restores_torch_matmul_settings(model: Path, tmp_path: Path) -> None:
    before = torch.get_float32_matmul_precision()

    tiny.train(tmp_path / "run", model, precision="fp32_bf16_matmul", optimisation__max_steps=1)

    assert torch.get_float32_matmul_precision() == before
    assert matmul_precision.measure_operand(CPU) == "float32"


def test_tf32_on_cpu_is_rejected(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, precision="fp32_tf32")

    failed = tiny.events_of(run, Failed)[0]
    assert failed.code == "precision_refused"
    assert failed.message == (
        "The precision float32 with TF32 products was requested, but this model would train "
        "differently: matmul should be tf32 and is float32."
    )


def test_audit_detects_wrong_optimizer(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run", precision="bf16_dual")
    made.trainer.optimizer_cls_and_kwargs = (torch.optim.AdamW, {"lr": 0.01})

    with pytest.raises(TrainingError) as caught:
        made.trainer.train()

    assert caught.value.message.endswith(
        "differently: optimizer should be AdamW with float32 master and is AdamW; "
        "optimizer states should be float32 and is bfloat16; master should be float32 and is none."
    )


def test_audit_detects_layer_in_wrong_format(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run", precision="bf16_pure")
    made.trainer.model.model.layers[1].mlp.up_proj.double()

    with pytest.raises(
        TrainingError, match=r"differently: model.layers.1.mlp.up_proj.weight is fl"
    ):
        made.trainer.train()


def test_audit_lists_layer_formats_and_attention_kernel(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, precision="bf16_dual", optimisation__max_steps=1)

    audit = audited(run)
    assert audit["formats"] == {
        "Embedding": "bfloat16",
        "Linear": "bfloat16",
        "LlamaRMSNorm": "bfloat16",
    }
    assert audit["attention_kernel"] == "flash attention for cpu"
    assert audit["trained_tensors"] == "21, all in the optimizer"


@pytest.mark.parametrize("optim", ["sgd", "adafactor"])
def test_other_optimizers_pass_audit(optim: str, model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, optimisation__optim=optim)

    assert isinstance(tiny.last_event(run), Finished)
    assert audited(run)["optimizer"] == {"sgd": "SGD", "adafactor": "Adafactor"}[optim]


def test_conflicting_settings_fail_run(model: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", model, precision="bf16_pure", adapter__kind="lora")

    assert tiny.events_of(run, Failed)[0].code == "conflict"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_frozen_base_keeps_saved_format_in_mixed_precision(
    precision: PrecisionName, narrow: Path, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", narrow, precision=precision, adapter__kind="lora")

    audit = audited(run)
    found = [audit[name] for name in ("weights", "trained", "optimizer_states", "compute")]
    assert found == ["bfloat16", "float32", "float32", PRECISIONS[precision].compute]
    assert audit["formats"]["adapter"] == "float32"


def test_frozen_base_is_widened_in_fp32_mode(narrow: Path, tmp_path: Path) -> None:
    run = tiny.train(tmp_path / "run", narrow, precision="fp32", adapter__kind="lora")

    assert audited(run)["weights"] == "float32"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_frozen_base_uses_requested_format(dtype: str, model: Path, tmp_path: Path) -> None:
    lora = {"adapter__kind": "lora", "adapter__base_dtype": dtype}
    run = tiny.train(tmp_path / "run", model, precision="bf16", **lora)

    assert (audited(run)["weights"], audited(run)["trained"]) == (dtype, "float32")
    assert tiny.metric_values(run, "loss")[-1] < tiny.metric_values(run, "loss")[0]


def test_trained_module_copies_are_cast_to_float32(model: Path) -> None:
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float16)
    adapted = get_peft_model(base, LoraConfig(r=2, modules_to_save=["lm_head"]))
    assert torch.float16 in {p.dtype for p in adapted.parameters() if p.requires_grad}

    loader.cast_trained_to_float32(adapted)

    assert {p.dtype for p in adapted.parameters() if p.requires_grad} == {torch.float32}
