"""What people asked of other systems, and did not get: each asked of ours, through a whole run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, LlamaConfig, RwkvConfig

from studio.errors import TrainingError
from studio.hardware import Gpu, Hardware, detect
from studio.methods import RECIPE_ADAPTER, AnyRecipe
from studio.protocols.events import AlarmRaised, Failed, Finished, Started
from studio.protocols.run_dir import RunDir
from studio.recipe.precision import PRECISIONS, PrecisionName
from studio.runner import training_run
from studio.runner.execution import execute_run
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import check
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NUMBERS = ("zero", "one", "two", "three", "four", "five")
Tune = Callable[..., RunDir]

LOUD = "model.layers.1.mlp.down_proj"
AMPERE = Hardware(
    processor="A processor",
    cores=8,
    memory_bytes=2**35,
    native_bf16=False,
    gpus=(Gpu(index=0, name="A100", memory_bytes=2**35, capability=(8, 0)),),
    torch="2.13.0+cu130",
)


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model that can add, so that its weights have the sizes that training gives."""
    root = tmp_path_factory.mktemp("taught")
    config = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    rate = {"optimisation__learning_rate": 3e-3, "optimisation__max_steps": 100}
    run = tiny.train(root / "run", tiny.write_model(root / "model", config), **rate)
    assert isinstance(tiny.last_event(run), Finished)
    return run.artifacts


@pytest.fixture(scope="module")
def tune(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Tune:
    """Teach it to subtract; runs of equal settings are made once."""
    root, made = tmp_path_factory.mktemp("tuned"), dict[str, RunDir]()

    def tuned(precision: PrecisionName, model: Path = taught, **changes: object) -> RunDir:
        name = f"{precision}-{model.name}-{abs(hash(tuple(changes.items())))}"
        if name not in made:
            made[name] = _tune(root / name, model, precision=precision, **changes)
        return made[name]

    return tuned


def _tune(root: Path, model: Path, **changes: object) -> RunDir:
    given = {
        "optimisation__max_steps": 40,
        "optimisation__learning_rate": 1e-3,
        "optimisation__per_device_train_batch_size": 8,
        "optimisation__lr_scheduler_type": "constant",
        "numerics__guard": "warn",
    }
    run = tiny.write_run(root, model, **(given | changes))
    tiny.write_rows(run.root / "train.jsonl", (_row(a, b) for a in range(6) for b in range(6)))
    execute_run(run.root, StopHandler())
    return run


def _row(one: int, two: int) -> dict[str, Any]:
    question = f"Subtract {NUMBERS[two]} from {NUMBERS[one]}!"
    answer = f"The rest of {NUMBERS[one]} less {NUMBERS[two]} must be {one - two}, friend."
    turns = (("user", question), ("assistant", answer))
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def last(run: RunDir) -> float:
    return sum(tiny.metric_values(run, "loss")[-5:]) / 5


def drop(run: RunDir) -> float:
    return tiny.metric_values(run, "loss")[0] - last(run)


def audited(run: RunDir, *names: str) -> list[Any]:
    audit = tiny.events_of(run, Started)[0].resolved["audit"]
    return [audit[name] for name in names]


# --- LWM: "is this float32, or what a TPU makes of it?" -----------------------------------------


def test_float32_audit_reports_matmul_format(tune: Tune) -> None:
    wide, rounded = tune("fp32"), tune("fp32_bf16_matmul")

    assert audited(wide, "weights", "matmul") == ["float32", "float32"]
    assert audited(rounded, "weights", "matmul") == ["float32", "bfloat16"]


def test_bfloat16_matmul_changes_first_loss_but_not_final_loss(tune: Tune) -> None:
    wide, rounded = tune("fp32"), tune("fp32_bf16_matmul")

    assert tiny.metric_values(wide, "loss")[0] != tiny.metric_values(rounded, "loss")[0]
    assert last(rounded) == pytest.approx(last(wide), abs=0.02)


def test_audit_detects_hidden_8_bit_matmul(taught: Path, tmp_path: Path) -> None:
    """Show that the two tests above could fail: a kernel that cheats is no float32."""
    with _Reading(torch.float8_e4m3fn):
        run = tiny.train(tmp_path / "run", taught, precision="fp32")

    assert "matmul should be float32 and is" in tiny.events_of(run, Failed)[0].message


class _Reading(TorchDispatchMode):
    """A machine whose every matrix product reads a narrow format."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # upstream is untyped
        self.dtype = dtype

    def __torch_dispatch__(
        self,
        function: Any,  # noqa: ANN401 -- an operator of torch
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        if function.overloadpacket in {torch.ops.aten.mm, torch.ops.aten.addmm}:
            args = tuple(one.to(self.dtype).to(one.dtype) for one in args)
        return function(*args, **(kwargs or {}))


# --- TransformerEngine: bfloat16 weights, with and without a master ------------------------------

FINE = {"optimisation__learning_rate": 2e-5, "optimisation__max_steps": 60}


def test_pure_bfloat16_stalls_at_usual_learning_rate(tune: Tune) -> None:
    assert drop(tune("bf16_pure", **FINE)) < 0.25 * drop(tune("bf16", **FINE))


@pytest.mark.parametrize(
    "precision",
    [
        "bf16_dual",
        "bf16_stochastic",
        "bf16_kahan",
    ],
)
def test_bfloat16_remedies_learn_like_mixed_precision(precision: str, tune: Tune) -> None:
    assert drop(tune(precision, **FINE)) > 0.9 * drop(tune("bf16", **FINE))


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ("bf16", ["float32", "float32", "none"]),
        ("bf16_pure", ["bfloat16", "bfloat16", "none"]),
        ("bf16_dual", ["bfloat16", "float32", "float32"]),
        ("bf16_stochastic", ["bfloat16", "bfloat16", "none"]),
    ],
)
def test_weight_state_and_master_formats_match_mode(
    precision: str, expected: list[str], tune: Tune
) -> None:
    assert audited(tune(precision, **FINE), "weights", "optimizer_states", "master") == expected


# --- RWKV-LM: float32, float16 and bfloat16 by one setting, a stray float64 found in time ---------


@pytest.fixture(scope="module")
def rwkv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = RwkvConfig(
        vocab_size=320, hidden_size=64, num_hidden_layers=2, context_length=128, eos_token_id=2
    )
    return tiny.write_model(tmp_path_factory.mktemp("rwkv") / "rwkv", config)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_rwkv_in_16_bits_reaches_float32_loss(
    precision: PrecisionName, rwkv: Path, tune: Tune
) -> None:
    wide, narrow = (tune(one, rwkv, optimisation__max_steps=20) for one in ("fp32", precision))

    assert audited(narrow, "compute") == [PRECISIONS[precision].compute]
    assert tiny.metric_values(narrow, "loss")[0] != tiny.metric_values(wide, "loss")[0]
    assert last(narrow) == pytest.approx(last(wide), rel=0.01)
    assert drop(wide) > 0.5


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_float64_layer_is_rejected_by_name(precision: str, rwkv: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(rwkv)
    model.rwkv.blocks[1].attention.key.double()
    model.save_pretrained(tmp_path)

    (refused,) = check(recipe(precision), recommendation.read_model_facts(tmp_path), detect())

    assert refused.message.startswith("rwkv.blocks.1.attention.key.weight is stored in float64")
    assert refused.repair == {"precision": "fp32"}


def recipe(precision: str) -> AnyRecipe:
    asked = {"base_model": "x", "dataset": "y", "precision": precision, "adapter": {"kind": "full"}}
    return RECIPE_ADAPTER.validate_python(asked)


# --- H2O LLM Studio: mixed precision off, float16 or bfloat16 -------------------------------------

MIXED = ("fp32", "fp16", "bf16")


@pytest.fixture(scope="module")
def mixed(model: Path, tune: Tune) -> dict[str, RunDir]:
    """Train from scratch: there the scaler skips no step, which would make it another run."""
    return {name: tune(name, model, optimisation__max_steps=20) for name in MIXED}


def test_float16_run_skips_no_steps(mixed: dict[str, RunDir]) -> None:
    assert tiny.events_of(mixed["fp16"], Finished)[0].metrics["skipped_steps"] == 0


def test_loss_scaler_is_used_only_for_float16(mixed: dict[str, RunDir]) -> None:
    scalers = {name: audited(run, "scaler") for name, run in mixed.items()}

    assert scalers == {"fp32": [False], "fp16": [True], "bf16": [False]}


def test_each_precision_gives_different_first_loss(mixed: dict[str, RunDir]) -> None:
    assert len({tiny.metric_values(run, "loss")[0] for run in mixed.values()}) == len(MIXED)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_16_bit_modes_reach_float32_loss(precision: str, mixed: dict[str, RunDir]) -> None:
    assert last(mixed[precision]) == pytest.approx(last(mixed["fp32"]), abs=0.05)
    assert drop(mixed["fp32"]) > 0.5


# --- CogVideo: a model of bfloat16's range, trained in float16 ------------------------------------


@pytest.fixture(scope="module")
def loud(taught: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model whose activations only bfloat16 and float32 can hold."""
    folder = tmp_path_factory.mktemp("loud") / "model"
    model = AutoModelForCausalLM.from_pretrained(taught, dtype=torch.bfloat16)
    model.get_submodule(LOUD).weight.data.mul_(3e6)
    model.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_native_dtype_is_read_from_weight_files(dtype: str, taught: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(taught, dtype=getattr(torch, dtype))
    model.save_pretrained(tmp_path)

    found = recommendation.read_model_facts(tmp_path)

    assert (found.main_dtype, found.stored) == (dtype, {dtype: 1.0})


def test_bfloat16_is_recommended_for_bfloat16_model(loud: Path) -> None:
    advised = recommendation.recommend(
        recipe("fp16"), recommendation.read_model_facts(loud), AMPERE
    )

    assert advised.mode.name == "bf16"
    assert "weights are bfloat16" in advised.sentence
    assert any("often overflow float16" in warning for warning in advised.warnings)


def test_float16_overflow_is_reported_with_module(loud: Path, tune: Tune) -> None:
    run = tune("fp16", loud, numerics__guard="stop")

    first, ended = tiny.events_of(run, AlarmRaised)[0], tiny.events_of(run, Failed)[0]
    assert (first.code, first.module) == ("activations_overflow", LOUD)
    assert (ended.code, ended.message) == (
        "non_finite",
        f"The loss has been NaN or infinite for 10 steps; it began in {LOUD}.",
    )
    assert not any(map(math.isfinite, tiny.metric_values(run, "loss")))
    assert tiny.metric_values(run, "loss_scale")[-1] == 2.0 ** (16 - 10)


def test_bfloat16_trains_model_that_overflows_float16(loud: Path, tune: Tune) -> None:
    run = tune("bf16", loud)

    assert isinstance(tiny.last_event(run), Finished)
    assert tiny.metric_values(run, "nonfinite_losses")[-1] == 0
    assert drop(run) > 0


# --- the control: what upstream does by itself, and that we would see it --------------------------


def test_upstream_disables_float16_amp_on_cpu() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    alone = Accelerator(mixed_precision="fp16", cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)

    assert (alone.native_amp, alone.scaler) == (False, None)


def test_audit_detects_disabled_float16_amp(taught: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", taught, precision="fp16")
    made = training_run.prepare(run, run.events.append, StopHandler())
    made.trainer.accelerator.native_amp = False
    made.trainer.accelerator.scaler = None

    with pytest.raises(TrainingError) as caught:
        made.trainer.train()

    assert caught.value.message == (
        "The precision float16 mixed was requested, but this model would train differently: "
        "compute should be float16 and is float32; matmul should be float16 and is float32; "
        "autocast should be float16 and is none; scaler should be True and is False."
    )
