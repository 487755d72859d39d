"""The choice of attention: in real runs, in the audit, and refused where it does not exist."""

from pathlib import Path
from typing import Any

import pytest

from studio.protocols.events import Failed, Finished, Started
from studio.runner.execution import execute_run
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.memory import tiny_configs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def train(folder: Path, model: Path, attention: str, **changes: object) -> Any:  # noqa: ANN401 -- a run
    return tiny.train(folder / attention, model, model__attention=attention, **changes)


@pytest.mark.smoke
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("kind", ["full", "lora"])
def test_eager_and_sdpa_train_alike_and_the_audit_tells_them_apart(
    kind: str, model: Path, tmp_path: Path, *, packing: bool
) -> None:
    changes = {"adapter__kind": kind, "data__packing": packing, "data__max_length": 64}
    runs = {name: train(tmp_path, model, name, **changes) for name in ("eager", "sdpa")}

    losses = {name: tiny.metric_values(run, "eval_loss") for name, run in runs.items()}
    assert losses["eager"] == pytest.approx(losses["sdpa"], rel=1e-4)
    for name, run in runs.items():
        (started,) = tiny.events_of(run, Started)
        audit = started.resolved["audit"]
        assert isinstance(tiny.last_event(run), Finished)
        assert audit["attention"] == name
        assert (audit["attention_kernel"] == "no fused kernel") == (name == "eager")


def test_automatic_attention_is_sdpa_bit_for_bit(model: Path, tmp_path: Path) -> None:
    automatic, chosen = (train(tmp_path, model, name) for name in ("automatic", "sdpa"))

    assert resumed_runs.curve(automatic) == resumed_runs.curve(chosen)
    assert resumed_runs.bits(automatic) == resumed_runs.bits(chosen)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_resumed_eager_run_equals_uninterrupted_run(
    precision: str, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path, model, "eager", precision=precision, **STEPS, **SAVED)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def test_family_without_sdpa_refuses_it_and_trains_by_itself(tmp_path: Path) -> None:
    config = tiny_configs.config("gemma2", words=320, hidden=32, inner=64, layers=2)
    base = tiny.write_model(tmp_path / "base", config)
    automatic, refused = (train(tmp_path, base, name) for name in ("automatic", "sdpa"))

    failed = tiny.last_event(refused)
    assert isinstance(tiny.last_event(automatic), Finished)
    assert tiny.events_of(automatic, Started)[0].resolved["audit"]["attention"] == "eager"
    assert isinstance(failed, Failed)
    assert (failed.code, "gemma2 models do not support SDPA" in failed.message) == (
        "conflict",
        True,
    )
