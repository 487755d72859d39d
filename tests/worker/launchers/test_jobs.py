"""When a cluster's engine is wrong, late, full, away or refuses: what becomes of an attempt."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from studio.protocols.run_dir import RunDir
from studio.worker.launchers.jobs.engine import EngineAwayError, JobRefusedError
from studio.worker.launchers.jobs.folder import JobFolder, Order, Report
from studio.worker.launchers.jobs.launcher import JobLauncher, Timing, home_id
from studio.worker.processes.launcher import LaunchSpec
from tests.fakes.engine import PlayedEngine
from tests.support.waiting import wait_until

FAKE = str(Path(__file__).parents[2] / "fakes" / "runner.py")
QUICK = Timing(poll=0.05, longest_poll=0.1, silence=8, settle=0.5)
"""A job tells each 5 seconds that it lives."""


@dataclass(slots=True)
class Runs:
    """One run, and the workers that follow it."""

    folder: RunDir
    engine: PlayedEngine = field(default_factory=PlayedEngine)
    opened: list[JobLauncher] = field(default_factory=list)

    def worker(self, part: str = "wait", timing: Timing = QUICK) -> JobLauncher:
        made = JobLauncher(self.engine, "home", sys.executable, (FAKE, part), timing=timing)
        made.open()
        self.opened.append(made)
        return made

    def spec(self, attempt: int = 1, secrets: dict[str, str] | None = None) -> LaunchSpec:
        self.folder.root.mkdir(exist_ok=True)
        self.folder.job.write_text(json.dumps({"attempt": attempt}))
        return LaunchSpec(run_id=1, attempt=attempt, folder=self.folder, secrets=secrets or {})

    @property
    def job(self) -> JobFolder:
        return JobFolder.of(self.folder.root, 1)

    def kinds(self) -> list[str]:
        there = self.folder.events.path.exists()
        return [event.kind for event in self.folder.events.read(0)[0]] if there else []

    def wait_for(self, kind: str) -> None:
        wait_until(lambda: kind in self.kinds())

    def trainer(self) -> psutil.Process:
        return psutil.Process(int(self.folder.lock.read_text().split()[0]))


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    made = Runs(RunDir(tmp_path / "1"))
    yield made
    for launcher in made.opened:
        launcher.close()
    made.engine.end()


def test_running_job_that_says_nothing_is_lost(runs: Runs) -> None:
    worker = runs.worker()
    handle = worker.submit(runs.spec())
    runs.wait_for("progressed")
    training = runs.trainer()
    runs.engine.is_blind = True
    runs.engine.jobs[handle].kill()
    wait_until(lambda: worker.poll(handle) is not None)

    end = worker.poll(handle)
    assert end is not None
    assert end.silent
    assert not training.is_running()
    assert runs.job.read_order() is Order.KILL


def test_nothing_is_lost_while_the_engine_is_away(runs: Runs) -> None:
    worker = runs.worker(timing=Timing(poll=0.05, longest_poll=0.1, silence=0.2, settle=0.1))
    handle = worker.submit(runs.spec())
    runs.wait_for("progressed")
    runs.engine.is_away = True
    wait_until(lambda: worker.away is not None)
    runs.trainer().kill()
    runs.engine.jobs[handle].kill()
    with pytest.raises(EngineAwayError):
        worker.tick()
    polls = [worker.poll(handle) for _ in range(50)]

    assert [end for end in polls if end is not None and end.silent] == []


def test_waiting_job_shows_the_engines_reason_and_is_not_lost(runs: Runs) -> None:
    runs.engine.is_full = True
    worker = runs.worker("train", Timing(poll=0.05, silence=0.2, settle=0.1))
    handle = worker.submit(runs.spec())
    wait_until(lambda: worker.waits_for(handle) == "Resources")
    ends = []
    while runs.engine.questions < 20:
        ends.append(worker.poll(handle))

    assert set(ends) == {None}


def test_waiting_job_that_is_stopped_never_starts(runs: Runs) -> None:
    runs.engine.is_full = True
    worker = runs.worker()
    handle = worker.submit(runs.spec())
    wait_until(lambda: handle in runs.engine.waiting)
    worker.stop(handle)
    wait_until(lambda: handle not in runs.engine.waiting)
    runs.engine.is_full = False
    wait_until(lambda: worker.poll(handle) is not None)

    assert runs.kinds() == []


def test_job_that_starts_after_its_stop_does_not_train(runs: Runs) -> None:
    runs.engine.is_full = True
    worker = runs.worker()
    handle = worker.submit(runs.spec())
    wait_until(lambda: handle in runs.engine.waiting)
    worker.close()
    runs.job.write_order(Order.STOP)
    runs.engine.is_full = False
    runs.engine.find([handle])
    runs.engine.jobs[handle].wait()

    assert runs.job.read_report() is not None
    assert runs.kinds() == []


def test_refused_job_fails_in_words(runs: Runs) -> None:
    runs.engine.refusal = "Slurm refuses the job: invalid partition specified: nope."
    worker = runs.worker()
    handle = worker.submit(runs.spec())

    def is_refused() -> bool:
        try:
            worker.poll(handle)
        except JobRefusedError as error:
            return "nope" in str(error)
        return False

    wait_until(is_refused)
    worker.kill(handle)
    assert worker.poll(handle) is not None


def test_job_of_a_worker_that_died_before_its_submission_is_submitted_once(runs: Runs) -> None:
    runs.engine.is_away = True
    first = runs.worker()
    handle = first.submit(runs.spec())
    first.close()
    runs.engine.is_away = False
    second = runs.worker()

    assert second.adopt(runs.spec(), "") == handle
    runs.wait_for("progressed")
    third = runs.worker()
    assert third.adopt(runs.spec(), handle) == handle
    wait_until(lambda: third.poll(handle) is None and bool(runs.engine.jobs))
    second.kill(handle)
    wait_until(lambda: second.poll(handle) is not None)
    assert runs.engine.submitted == [handle]


def test_engine_that_has_forgotten_its_jobs_loses_no_run(runs: Runs) -> None:
    worker = runs.worker()
    handle = worker.submit(runs.spec())
    runs.wait_for("progressed")
    runs.engine.has_forgotten = True
    another = runs.worker()
    another.adopt(runs.spec(), handle)
    beat = runs.job.read_report()
    wait_until(lambda: runs.job.read_report() != beat)

    assert (worker.poll(handle), another.poll(handle)) == (None, None)
    assert runs.engine.submitted == [handle]


def test_job_whose_attempt_was_given_up_ends_itself(runs: Runs) -> None:
    worker = runs.worker()
    handle = worker.submit(runs.spec())
    runs.wait_for("progressed")
    training = runs.trainer()
    runs.folder.job.write_text(json.dumps({"attempt": 2}))

    wait_until(lambda: not training.is_running())
    wait_until(lambda: worker.poll(handle) is not None)


def test_second_job_of_an_attempt_does_not_train(runs: Runs) -> None:
    worker = runs.worker()
    handle = worker.submit(runs.spec())
    runs.wait_for("progressed")
    first = runs.engine.jobs[handle]
    runs.engine.start(runs.engine.requests[handle])
    assert runs.engine.jobs[handle].wait() == 0
    runs.engine.jobs[handle] = first

    assert runs.kinds().count("started") == 1
    assert worker.poll(handle) is None


def test_cluster_that_wants_its_machine_back_pauses_the_run(runs: Runs) -> None:
    worker = runs.worker()
    handle = worker.submit(runs.spec())
    runs.wait_for("progressed")
    runs.engine.jobs[handle].terminate()
    wait_until(lambda: worker.poll(handle) is not None)

    assert runs.kinds()[-1] == "paused"


def test_secrets_are_read_once_and_are_in_no_job(runs: Runs) -> None:
    worker = runs.worker()
    handle = worker.submit(runs.spec(secrets={"HF_TOKEN": "hushhush"}))
    runs.wait_for("progressed")

    assert runs.trainer().environ().get("HF_TOKEN") == "hushhush"
    assert "hushhush" not in " ".join(runs.engine.requests[handle].command)
    assert [one for one in runs.job.root.iterdir() if "hushhush" in one.read_text()] == []


def test_training_gets_no_power_over_the_cluster(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "hushhush")
    worker = runs.worker()
    worker.submit(runs.spec())
    runs.wait_for("progressed")

    assert "hushhush" not in runs.trainer().environ().values()


def test_report_that_is_half_written_counts_as_unread(runs: Runs) -> None:
    runs.spec()
    runs.job.create({})
    runs.job.write_report(Report(beat=3, host="a"))
    whole = runs.job.read_report()
    (runs.job.root / "report").write_text('{"beat": 4, ')

    assert whole == Report(beat=3, host="a")
    assert runs.job.read_report() is None


def test_home_keeps_its_id(tmp_path: Path) -> None:
    first = home_id(tmp_path / "cluster_id")

    assert first == home_id(tmp_path / "cluster_id")
    assert first != home_id(tmp_path / "other")
