"""What Slurm and Ray say of jobs, as recorded from Slurm 22.05 and Ray 2.60."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from studio.errors import InvalidError, StudioError
from studio.services.tasks import exit_diagnosis
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import Settings
from studio.worker.launchers import choice
from studio.worker.launchers.jobs.engine import EngineAwayError, EngineJob, JobRequest, JobState
from studio.worker.launchers.ray.engine import (
    RayEngine,
    parse_job,
    parse_options,
    parse_version,
)
from studio.worker.launchers.slurm.engine import SlurmEngine, parse_queue

NAME = "studio-1a2b3c4d-7-1"


def line(name: str, state: str, code: int, reason: str) -> str:
    """Return a line of `squeue --Format=Name:100,State:20,exit_code:12,Reason:60`."""
    return f"{name:<100}{state:<20}{code:<12}{reason:<60}"


@pytest.mark.parametrize(
    ("state", "code", "reason", "expected"),
    [
        ("RUNNING", 0, "None", EngineJob(JobState.RUNNING)),
        ("COMPLETING", 0, "None", EngineJob(JobState.RUNNING)),
        ("PENDING", 0, "PartitionConfig", EngineJob(JobState.WAITING, "PartitionConfig")),
        ("PENDING", 0, "None", EngineJob(JobState.WAITING)),
        ("SUSPENDED", 0, "None", EngineJob(JobState.WAITING, "SUSPENDED")),
        (
            "COMPLETED",
            0,
            "None",
            EngineJob(JobState.ENDED, "COMPLETED", ProcessExit(exit_code=0)),
        ),
        (
            "FAILED",
            768,
            "NonZeroExitCode",
            EngineJob(JobState.ENDED, "FAILED, NonZeroExitCode", ProcessExit(exit_code=3)),
        ),
        (
            "FAILED",
            9,
            "JobLaunchFailure",
            EngineJob(JobState.ENDED, "FAILED, JobLaunchFailure", ProcessExit(exit_code=-9)),
        ),
        (
            "FAILED",
            (128 + 15) << 8,
            "NonZeroExitCode",
            EngineJob(JobState.ENDED, "FAILED, NonZeroExitCode", ProcessExit(exit_code=-15)),
        ),
        (
            "OUT_OF_MEMORY",
            125 << 8,
            "OutOfMemory",
            EngineJob(
                JobState.ENDED,
                "OUT_OF_MEMORY, OutOfMemory",
                ProcessExit(exit_code=125, out_of_memory=True),
            ),
        ),
        ("NODE_FAIL", 1, "NodeDown", EngineJob(JobState.ENDED, "NODE_FAIL, NodeDown")),
        ("TIMEOUT", 0, "TimeLimit", EngineJob(JobState.ENDED, "TIMEOUT, TimeLimit")),
        ("CANCELLED", 0, "None", EngineJob(JobState.ENDED, "CANCELLED")),
    ],
)
def test_slurm_states(state: str, code: int, reason: str, expected: EngineJob) -> None:
    assert parse_queue(line(NAME, state, code, reason)) == {NAME: expected}


@pytest.mark.parametrize("is_first", [True, False])
def test_of_two_jobs_with_a_name_the_live_one_counts(*, is_first: bool) -> None:
    lines = [line(NAME, "RUNNING", 0, "None"), line(NAME, "COMPLETED", 0, "None")]

    told = parse_queue("\n".join(lines if is_first else reversed(lines)))
    assert told == {NAME: EngineJob(JobState.RUNNING)}


def test_empty_queue() -> None:
    assert parse_queue("") == {}


FAILED = (
    "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 "
    "chars):\nRunning entrypoint for job a2: exit 3\nstep 1\n"
)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (
            {"status": "PENDING", "message": "Job has not started yet.", "driver_exit_code": None},
            EngineJob(JobState.WAITING, "Job has not started yet."),
        ),
        (
            {"status": "RUNNING", "message": "Job is currently running."},
            EngineJob(JobState.RUNNING),
        ),
        (
            {"status": "FAILED", "message": FAILED, "driver_exit_code": 3},
            EngineJob(JobState.ENDED, "FAILED, step 1.", ProcessExit(exit_code=3)),
        ),
        (
            {"status": "FAILED", "message": "killed", "driver_exit_code": -9},
            EngineJob(JobState.ENDED, "FAILED, killed.", ProcessExit(exit_code=-9)),
        ),
        (
            {"status": "FAILED", "message": "killed", "driver_exit_code": 137},
            EngineJob(JobState.ENDED, "FAILED, killed.", ProcessExit(exit_code=-9)),
        ),
        (
            {"status": "STOPPED", "message": "Job was intentionally stopped."},
            EngineJob(JobState.ENDED, "STOPPED, Job was intentionally stopped."),
        ),
    ],
)
def test_ray_states(told: dict[str, Any], expected: EngineJob) -> None:
    assert parse_job(told) == expected


def test_ray_versions() -> None:
    assert parse_version("2.60.0") < parse_version("2.61.1") < parse_version("3.0.0.dev0")
    assert parse_version("?") == (0, 0)


class Dashboard(http.server.BaseHTTPRequestHandler):
    """Answers as the dashboard of Ray does: the same, whatever is asked."""

    answer: ClassVar[tuple[int, str]] = (200, "")
    asked: ClassVar[list[tuple[str, str, dict[str, Any]]]] = []

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = json.loads(self.rfile.read(length) or "{}")
        self.asked.append((self.path, self.headers.get("authorization", ""), body))
        status, text = self.answer
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def dashboard(status: int, text: str) -> Iterator[tuple[str, type[Dashboard]]]:
    handler = type("Handler", (Dashboard,), {"answer": (status, text), "asked": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler
        server.shutdown()
        thread.join()


REQUEST = JobRequest(name=NAME, command=("python", "-m", "x", "/a b"), log=Path("log.txt"))


def test_job_of_ray_is_named_and_holds_no_token() -> None:
    with dashboard(200, "{}") as (address, handler):
        options = {"entrypoint_resources": {"H100": 1}, "runtime_env": {"env_vars": {"A": "1"}}}
        RayEngine(address, "hushhush", 2, options, {"B": "2"}).submit(REQUEST)

    ((path, authorization, body),) = handler.asked
    assert (path, authorization) == ("/api/jobs/", "Bearer hushhush")
    assert body == {
        "entrypoint": "exec python -m x '/a b'",
        "submission_id": NAME,
        "entrypoint_num_gpus": 2,
        "entrypoint_resources": {"H100": 1},
        "runtime_env": {"env_vars": {"A": "1", "B": "2"}},
    }


def test_job_that_ray_knows_counts_as_submitted() -> None:
    with dashboard(500, f"ValueError: Job with submission_id {NAME} already exists.") as (url, _):
        RayEngine(url).submit(REQUEST)


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (400, "TypeError: unexpected keyword argument 'nope'", "nope"),
        (500, "RuntimeError: Request failed with status code 400: ValueError: nope", "nope"),
    ],
)
def test_job_that_ray_refuses(status: int, text: str, message: str) -> None:
    with dashboard(status, text) as (address, _), pytest.raises(InvalidError, match=message):
        RayEngine(address).submit(REQUEST)


@pytest.mark.parametrize(
    ("status", "text"), [(500, "No available agent"), (401, "Unauthorized"), (503, "")]
)
def test_error_of_ray_says_nothing_of_jobs(status: int, text: str) -> None:
    with dashboard(status, text) as (address, _), pytest.raises(EngineAwayError):
        RayEngine(address).find([NAME])


def test_job_that_ray_does_not_know() -> None:
    with dashboard(404, "Job does not exist") as (address, _):
        assert RayEngine(address).find([NAME]) == {}


@pytest.mark.parametrize(
    ("status", "text", "message"),
    [
        (200, '{"ray_version": "2.59.1"}', "2.59.1"),
        (200, "<html>", "not the dashboard"),
        (404, "{}", "not the dashboard"),
        (401, "Unauthorized", "token"),
    ],
)
def test_ray_that_cannot_be_used(status: int, text: str, message: str, tmp_path: Path) -> None:
    with dashboard(status, text) as (address, _), pytest.raises(StudioError, match=message):
        choice.choose(Settings(home=tmp_path, launcher="ray", ray_address=address))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ray_address": ""}, "no address"),
        ({"ray_address": "http://127.0.0.1:1"}, "does not answer"),
        ({"ray_address": "http://127.0.0.1:1", "ray_options": "[1]"}, "JSON object"),
    ],
)
def test_ray_that_is_set_up_wrongly(given: dict[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(StudioError, match=message):
        choice.choose(Settings.model_validate({"home": tmp_path, "launcher": "ray"} | given))


def test_options_of_ray() -> None:
    assert parse_options("") == {}
    assert parse_options('{"a": 1}') == {"a": 1}


def test_slurm_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(InvalidError, match=r"sbatch, squeue, scancel cannot be found"):
        choice.choose(Settings(home=tmp_path, launcher="slurm"))


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_slurm_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    words = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    for name in ("sbatch", "squeue", "scancel"):
        program(tmp_path, name, f"echo '{words}' >&2; exit 1")

    for ask in (
        SlurmEngine().check,
        lambda: SlurmEngine().submit(REQUEST),
        lambda: SlurmEngine().cancel(NAME),
    ):
        with pytest.raises(EngineAwayError, match="Unable to contact"):
            ask()


def test_ends_in_words() -> None:
    lost = exit_diagnosis.diagnose(ProcessExit(silent=True), "training")
    ended = exit_diagnosis.diagnose(ProcessExit(cluster="Slurm: TIMEOUT, TimeLimit."), "training")

    assert (lost.code, lost.is_transient) == ("lost_worker", True)
    assert "TimeLimit" in ended.message
    assert ended.is_transient
