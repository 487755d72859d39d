"""Tokens counted by a chore: asked for, done by a real process, kept, and forgotten."""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import select

from studio.db.session import read_session, unit_of_work
from studio.db.states import TaskStatus
from studio.db.tables import DatasetVersion
from studio.db.tasks import Task
from studio.intake.quality.length_stats import TokenStats
from studio.services.datasets import datasets, token_stats, versions
from studio.services.datasets.token_stats import StatsRequest
from studio.services.models import models
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.loop import WorkerLoop
from studio.worker.processes.launcher import LocalLauncher
from tests.support import tokenizer_services
from tests.support.worker_processes import stop_processes, wait_until_final


@pytest.fixture
def loop(
    engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WorkerLoop]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    loop = WorkerLoop(engine, settings, LocalLauncher())
    yield loop
    stop_processes(loop)


@pytest.fixture
def model(engine: Engine, tmp_path: Path) -> Path:
    with unit_of_work(engine) as db:
        models.add(
            db, "spoken", str(tokenizer_services.write_model(tmp_path / "spoken")), kind="folder"
        )
    return tmp_path / "spoken"


def counted(loop: WorkerLoop) -> Task:
    """Have the tokens counted, and wait for what comes of it."""
    with unit_of_work(loop.engine) as db:
        asked = token_stats.enqueue(db, loop.settings, which(loop)).id or 0
    return wait_until_final(loop, asked)


def which(loop: WorkerLoop) -> StatsRequest:
    with read_session(loop.engine) as db:
        version = versions.current(db, datasets.get(db, 1))
        assert version is not None
        return token_stats.build_request(db, version, "spoken", "model")


def known(loop: WorkerLoop) -> TokenStats | None:
    wanted = which(loop)
    with read_session(loop.engine) as db:
        return token_stats.find_stats(db, wanted)


@pytest.mark.usefixtures("model")
def test_task_counts_same_tokens_as_training(loop: WorkerLoop) -> None:
    chore = counted(loop)

    found = token_stats.parse_result(chore)
    assert (chore.status, chore.share) == (TaskStatus.SUCCEEDED, 1.0)
    assert found is not None
    assert found == known(loop)
    assert (found.train.rows, found.train.tokens, found.train.learnt) == (40, 1701, 151)
    assert found.train.lengths.times == {41: 9, 42: 1, 43: 30}


@pytest.mark.usefixtures("model")
def test_same_rows_are_counted_once(loop: WorkerLoop) -> None:
    chore = counted(loop)

    assert counted(loop).id == chore.id


def test_tokenizer_change_replaces_token_stats(loop: WorkerLoop, model: Path) -> None:
    first = counted(loop)
    tokenizer_services.write_model(
        model, template="{{ messages[0].content }}" + tokenizer_services.CHATML
    )
    second = counted(loop)

    with read_session(loop.engine) as db:
        assert [chore.id for chore in db.exec(select(Task))] == [second.id]
    assert first.id != second.id


def test_model_without_template_fails_with_template_hint(loop: WorkerLoop, model: Path) -> None:
    tokenizer_services.write_model(model, template="")
    chore = counted(loop)

    assert (chore.status, chore.error_code) == (TaskStatus.FAILED, "invalid")
    assert chore.error_message.startswith("This model has no chat template")
    assert chore.error_hint == "Choose a chat template: chatml or plain."


def test_memory_exhausting_template_rejects_affected_rows(loop: WorkerLoop, model: Path) -> None:
    greedy = "{% if '7' in messages[0].content %}{{ 'a' * 10 ** 11 }}{% endif %}"
    tokenizer_services.write_model(model, template=greedy + tokenizer_services.CHATML)
    found = token_stats.parse_result(counted(loop))

    assert found is not None
    assert [one.numbers for one in found.train.refused.values()] == [[8, 18, 28, 38]]


@pytest.mark.usefixtures("model")
def test_token_stats_are_kept_until_their_dataset_changes(loop: WorkerLoop) -> None:
    chore = counted(loop)
    with unit_of_work(loop.engine) as db:
        tasks.get(db, chore.id or 0).finished_at = datetime.now(UTC) - timedelta(days=400)
    loop.adopt(alone=True)
    assert known(loop) is not None

    with unit_of_work(loop.engine) as db:
        db.exec(select(DatasetVersion)).one().sha256 = "2" * 64
    loop.adopt(alone=True)

    with read_session(loop.engine) as db:
        assert db.exec(select(Task)).all() == []
