"""Runs forked by a warm launcher that train on a GPU: after each other, and two at once."""

from pathlib import Path

import pytest
import torch

from studio.protocols.events import Started
from studio.worker.processes import process
from tests.support.waiting import wait_until
from tests.training import tiny
from tests.training.runs.test_prefork_server import ended, losses, ready_launcher

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine"),
]


def test_forked_gpu_runs_match_spawned_run(tmp_path: Path) -> None:
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    runs = [tiny.write_run(tmp_path / name, model) for name in ("cold", "one", "two", "three")]
    spawned = process.start(runs[0], gpu=0)
    wait_until(lambda: ended(spawned), seconds=300)
    (tmp_path / "home").mkdir()
    with ready_launcher(tmp_path / "home") as launcher:
        forked = [launcher.start(runs[1], gpu=0)]
        wait_until(lambda: ended(forked[0]), seconds=300)
        forked += [launcher.start(run, gpu=0) for run in runs[2:]]
        wait_until(lambda: all(map(ended, forked)), seconds=300)

    assert [made.child for made in forked] == [None, None, None]
    assert [made.exit_code for made in [spawned, *forked]] == [0, 0, 0, 0]
    assert [tiny.events_of(run, Started)[0].resolved["device"] for run in runs] == ["cuda"] * 4
    assert [losses(run) for run in runs] == [pytest.approx(losses(runs[0]), rel=1e-4)] * 4
