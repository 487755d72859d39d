"""The runner as the worker starts it: a process of its own, with signals and a hub."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from studio.protocols.events import Failed, Finished, MetricsLogged, Stopped
from studio.protocols.run_dir import RunDir
from tests.support.waiting import wait_until
from tests.training import tiny

pytestmark = pytest.mark.slow

COMMIT = "0" * 40
HUB_MODEL = "tests/tiny"
GATED_MODEL = "owner/gated"


def start(run: RunDir, **environment: str) -> subprocess.Popen[bytes]:
    with run.log.open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "studio.runner", str(run.root)],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
        )


class HubServer(ThreadingHTTPServer):
    """A hub that has one model, which lies in a folder."""

    folder: Path


class Answers(BaseHTTPRequestHandler):
    """What the hub's clients ask: the head of a file, then the file."""

    server: HubServer

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *_args: object) -> None:
        """Say nothing: the test's output is the test's."""

    def _answer(self, *, body: bool) -> None:
        repository, _, name = self.path.strip("/").partition("/resolve/main/")
        path = self.server.folder / name
        name_on_hub = repository.removeprefix("api/models/")
        if name_on_hub.startswith(GATED_MODEL):
            self._missing("GatedRepo", 403)
        elif not name_on_hub.startswith(HUB_MODEL):
            self._missing("RepoNotFound", 401)
        elif not path.is_file():
            self._missing("EntryNotFound", 404)
        else:
            self._file(path, body=body)

    def _file(self, path: Path, *, body: bool) -> None:
        content = path.read_bytes()
        self.send_response(200)
        self.send_header("ETag", f'"{path.name}-{len(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _missing(self, code: str, status: int) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def hub(folder: Path) -> Iterator[str]:
    with HubServer(("127.0.0.1", 0), Answers) as server:
        server.folder = folder
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_sigterm_stops_run_after_current_step(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, optimisation__max_steps=100_000)
    process = start(run)
    wait_until(lambda: len(tiny.events_of(run, MetricsLogged)) > 0)

    process.send_signal(signal.SIGTERM)

    assert process.wait(60) == 0
    stopped = tiny.last_event(run)
    assert isinstance(stopped, Stopped)
    assert stopped.step >= tiny.events_of(run, MetricsLogged)[-1].step
    assert {path.name for path in run.root.iterdir()} == {
        "recipe.yaml",
        "job.json",
        "train.jsonl",
        "events.jsonl",
        "log.txt",
        "runner.lock",
    }


def test_accelerate_environment_variables_are_ignored(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model)

    process = start(run, ACCELERATE_MIXED_PRECISION="fp16", ACCELERATE_USE_FSDP="true")

    assert process.wait(120) == 0
    assert isinstance(tiny.last_event(run), Finished)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_run_log_contains_no_package_warnings(precision: str, model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model, precision=precision)

    assert start(run).wait(120) == 0

    log = run.log.read_text(encoding="utf-8")
    assert [line for line in log.splitlines() if "torchao" in line or "bitsandbytes" in line] == []
    assert "is an Enum subclass" not in log


def test_base_model_is_downloaded_from_hub_by_name(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", HUB_MODEL, base_model=HUB_MODEL, adapter__kind="lora")

    with hub(model) as endpoint:
        process = start(run, HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path / "cache"))
        code = process.wait(120)

    assert (code, tiny.last_event(run).kind) == (0, "finished"), run.log.read_text(encoding="utf-8")
    assert "base_model: tests/tiny\n" in (run.artifacts / "README.md").read_text(encoding="utf-8")


def test_unknown_hub_model_fails_with_clear_message(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", "tests/nothing")

    with hub(model) as endpoint:
        process = start(run, HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path / "cache"))
        code = process.wait(120)

    failed = tiny.events_of(run, Failed)[0]
    assert (code, failed.code) == (1, "model_not_found")
    assert "Traceback" in run.log.read_text(encoding="utf-8")
    assert failed.message == "The hub has no such model, or it is private."


def test_gated_model_error_asks_to_accept_terms(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", GATED_MODEL)

    with hub(model) as endpoint:
        code = start(run, HF_ENDPOINT=endpoint, HF_HOME=str(tmp_path / "cache")).wait(120)

    failed = tiny.events_of(run, Failed)[0]
    assert (code, failed.code, failed.message) == (
        1,
        "gated_model",
        "This model is gated: you must accept its terms first.",
    )


def test_missing_package_is_named(model: Path, tmp_path: Path) -> None:
    run = tiny.write_run(tmp_path / "run", model)
    without = (
        "import sys, pathlib; sys.modules['torch'] = None\n"
        "from studio.runner.execution import execute_run\n"
        "from studio.training.stop_handler import StopHandler\n"
        "sys.exit(execute_run(pathlib.Path(sys.argv[1]), StopHandler()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", without, str(run.root)], capture_output=True, check=False
    )

    failed = tiny.events_of(run, Failed)[0]
    assert (done.returncode, failed.code, failed.message) == (
        1,
        "dependency_missing",
        "A package that training needs cannot be loaded: torch is not installed.",
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="Only root can make a disk of a few kilobytes.")
def test_full_disk_fails_run_with_disk_full_error(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(disk)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("This machine lets nobody mount a small disk.")
    try:
        run = tiny.write_run(disk / "run", model)
        code = start(run).wait(120)
        failed = tiny.events_of(run, Failed)[0]
    finally:
        subprocess.run(["umount", disk], check=True)  # noqa: S607 -- where a system keeps it

    assert (code, failed.code, failed.message) == (1, "disk_full", "The disk is full.")
