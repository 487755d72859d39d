"""Products of 8 bits, through whole runs: what is read, what learns, what is saved and refused."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, PreTrainedConfig

from studio.errors import TrainingError
from studio.protocols.events import AlarmRaised, Failed, Finished, Started
from studio.protocols.run_dir import RunDir
from studio.runner import training_run
from studio.training.precision import float8, matmul_precision
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

CPU = torch.device("cpu")
PLAIN = """
import sys
sys.modules["torchao"] = None
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
print(sorted({str(p.dtype) for p in model.parameters()}))
"""


def prepared(model: Path, root: Path, precision: str = "fp8") -> training_run.TrainingRun:
    run = tiny.write_run(root, model, precision=precision)
    return training_run.prepare(run, run.events.append, StopHandler())


def unmade(made: training_run.TrainingRun) -> str:
    """Return why a run would not train."""
    with pytest.raises(TrainingError) as caught:
        made.trainer.train()
    return caught.value.message


@pytest.fixture(scope="module")
def runs(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDir]:
    """Train the same run with products of 16 and of 8 bits."""
    root = tmp_path_factory.mktemp("eight")
    steps = {"optimisation__max_steps": 30}
    return {
        name: tiny.train(root / name, model, precision=name, **steps) for name in ("bf16", "fp8")
    }


@pytest.fixture(scope="module")
def audited(runs: dict[str, RunDir]) -> dict[str, Any]:
    audit: dict[str, Any] = tiny.events_of(runs["fp8"], Started)[0].resolved["audit"]
    return audit


# --- what is read -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("is_to_the_brim", [True, False])
def test_fp8_format_is_detected_from_results(dtype: torch.dtype, *, is_to_the_brim: bool) -> None:
    ones = torch.ones(matmul_precision.PROBE_SIZE, matmul_precision.PROBE_SIZE)

    def product(fine: torch.Tensor) -> torch.Tensor:
        scale = torch.finfo(dtype).max / fine.abs().max() if is_to_the_brim else 256
        return (fine * scale).to(dtype).float() @ ones

    assert matmul_precision.measure_format(product, CPU) == str(dtype).removeprefix("torch.")


def test_audit_counts_fp8_layers(audited: dict[str, Any]) -> None:
    names = ("linear_layers", "linear_gradients", "matmul", "compute", "matmul_emulated")

    assert {name: audited[name] for name in names} == {
        "linear_layers": "14 of 15 read float8_e4m3fn",
        "linear_gradients": "float8_e5m2",
        "matmul": "float8_e4m3fn",
        "compute": "bfloat16",
        "matmul_emulated": True,
    }


def test_audit_detects_one_unconverted_layer(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run")
    mlp = made.trainer.model.model.layers[1].mlp
    plain = nn.Linear(mlp.up_proj.in_features, mlp.up_proj.out_features, bias=False)
    plain.weight = mlp.up_proj.weight
    mlp.up_proj = plain

    assert unmade(made).endswith(
        "differently: matmul should be float8_e4m3fn and is bfloat16 and float8_e4m3fn."
    )


def test_audit_detects_wrong_gradient_format(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run")
    layer = made.trainer.model.model.layers[0].mlp.up_proj
    layer.config = Float8LinearConfig.from_recipe_name("rowwise")

    assert "float8_e4m3fn of gradients" in unmade(made)


def test_audit_detects_missing_fp8_conversion(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run", precision="bf16")
    wanted = prepared(model, tmp_path / "wanted")
    wanted.trainer.model = wanted.trainer.model_wrapped = made.trainer.model

    assert unmade(wanted).endswith("matmul should be float8_e4m3fn and is bfloat16.")


def test_audit_detects_weights_missing_from_optimizer(model: Path, tmp_path: Path) -> None:
    """Upstream's own way: float8 all-gather puts new tensors where the optimizer holds the old."""
    made = prepared(model, tmp_path / "run", precision="bf16")
    made.trainer.create_optimizer()
    theirs = Float8LinearConfig(emulate=True, enable_fsdp_float8_all_gather=True)
    convert_to_float8_training(made.trainer.model.model, config=theirs)

    assert unmade(made) == (
        "Some weights are not in the optimizer and would not be trained: 14, first "
        "model.layers.0.self_attn.q_proj.weight."
    )


# --- what learns, and what is saved ---------------------------------------------------------------


def test_fp8_run_reaches_bf16_loss(runs: dict[str, RunDir]) -> None:
    wide, narrow = (tiny.metric_values(runs[name], "loss") for name in ("bf16", "fp8"))

    assert isinstance(tiny.last_event(runs["fp8"]), Finished)
    assert sum(narrow[-5:]) / 5 == pytest.approx(sum(wide[-5:]) / 5, abs=0.1)
    assert narrow[-1] < 0.5 * narrow[0]


def test_fp8_run_raises_no_alarm(runs: dict[str, RunDir]) -> None:
    assert tiny.events_of(runs["fp8"], AlarmRaised) == []


def test_fp8_training_updates_every_weight(runs: dict[str, RunDir], model: Path) -> None:
    before = load_file(model / "model.safetensors")
    after = load_file(runs["fp8"].artifacts / "model.safetensors")

    assert before.keys() == after.keys()
    assert [name for name in before if torch.equal(before[name], after[name])] == []


def test_saved_model_loads_without_torchao(runs: dict[str, RunDir]) -> None:
    command = [sys.executable, "-c", PLAIN, str(runs["fp8"].artifacts)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "['torch.float32']"


def test_saved_model_equals_trained_model(model: Path, tmp_path: Path) -> None:
    made = prepared(model, tmp_path / "run")
    made.train()
    made.save_artifacts([], {})

    plain = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    plain.load_state_dict(made.trainer.model.state_dict())
    saved = AutoModelForCausalLM.from_pretrained(made.job.run_dir.artifacts)
    pad = made.job.tokenizer.pad_token_id
    losses = [tiny.loss_of(one, made.job.validation, pad) for one in (saved, plain)]
    assert losses[0] == losses[1]
    assert losses[0] != tiny.loss_of(
        AutoModelForCausalLM.from_pretrained(model), made.job.validation, pad
    )


# --- what is refused ------------------------------------------------------------------------------


def small(**sides: int) -> PreTrainedConfig:
    config = tiny.llama()
    config.update(sides)
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            small(intermediate_size=40),
            (
                "model.layers.0.mlp.gate_proj, model.layers.0.mlp.up_proj, "
                "model.layers.0.mlp.down_proj and 3 more: 8-bit products need layers whose "
                "dimensions are multiples of 16."
            ),
        ),
        (
            GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=2, n_positions=128),
            "This model has no linear layer that supports 8-bit products.",
        ),
    ],
    ids=["odd sides", "no linear layers"],
)
def test_model_unsuitable_for_fp8_is_rejected_with_reason(
    config: PreTrainedConfig, message: str, tmp_path: Path
) -> None:
    model = tiny.write_model(tmp_path / "model", config)

    run = tiny.train(tmp_path / "run", model, precision="fp8")

    failed = tiny.events_of(run, Failed)[0]
    assert (failed.code, failed.message) == ("precision_refused", message)


def test_output_layer_is_not_converted_to_fp8(model: Path) -> None:
    loaded = AutoModelForCausalLM.from_pretrained(model)

    assert loaded.lm_head not in float8.linear_layers(loaded).values()
