"""A studio that lives: web, worker and training in processes of their own, on a real folder."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from sqlmodel import select

from studio import starter
from studio.db.session import unit_of_work
from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.protocols.run_dir import RunDir
from studio.services.operations import home
from studio.services.tasks import tasks
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.processes import process
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]

UNVERIFIED_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients of http alone: to load all certificates takes each of them 28 ms of a core."""


@dataclass(frozen=True, slots=True)
class ApiClient:
    """A studio's REST interface, each call on a connection of its own."""

    base: str
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **given: Any) -> httpx2.Response:  # noqa: ANN401 -- httpx2's own
        return httpx2.get(self.base + path, **self._given(given))

    def post(self, path: str, **given: Any) -> httpx2.Response:  # noqa: ANN401 -- httpx2's own
        return httpx2.post(self.base + path, **self._given(given))

    def _given(self, given: dict[str, Any]) -> dict[str, Any]:
        headers = self.headers | given.pop("headers", {})
        common = {"timeout": 30, "trust_env": False, "verify": UNVERIFIED_TLS}
        return common | {"headers": headers} | given


@dataclass(slots=True)
class Studio:
    """A studio in a process of its own, on a folder that outlives it."""

    home: Path
    port: int
    worker: bool = True
    """Whether to start a worker beside the web process."""
    process: subprocess.Popen[bytes] | None = None
    warm: bool = False
    """Whether it keeps a warm launcher: seconds of two cores that most tests need not spend."""
    development: bool = False
    """Whether it shows the page of styles."""
    sign_in: str = "none"
    """Whom it lets in."""
    evaluates: bool = False
    """Whether it evaluates finished runs by itself: most tests are not about that."""

    @classmethod
    def copied(cls, folder: Path, to: Path) -> "Studio":
        """Make a studio on a copy of another's folder; it is not started yet."""
        shutil.copytree(folder, to)
        return cls(to, free_port())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> "ApiClient":
        token = Settings(home=self.home).api_token
        shown = f"Bearer {token.read_text().strip()}" if token.exists() else ""
        return ApiClient(f"{self.url}/api/v1", {"Authorization": shown} if shown else {})

    def start(self) -> None:
        self.begin()
        wait_until(self.is_up)

    def begin(self) -> None:
        """Start the process, and do not wait for it."""
        log = (self.home / "studio.log").open("ab")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "studio", "serve", "--port", str(self.port)),
                *(() if self.worker else ("--no-worker",)),
            ],
            env=os.environ
            | {"STUDIO_HOME": str(self.home), "STUDIO_WARM_LAUNCHER": str(self.warm)}
            | {"STUDIO_DEVELOPMENT": str(self.development), "STUDIO_SIGN_IN": self.sign_in}
            | {"STUDIO_EVALUATE_RUNS": str(self.evaluates)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()

    def interrupt(self) -> None:
        """Press Ctrl-C: the terminal sends it to web and worker alike."""
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.home / "studio.log").read_text()
        try:
            # Without a worker the studio answers, and says that it is not well.
            return self.api.get("/health").status_code == httpx2.codes.OK or not self.worker
        except httpx2.TransportError:
            return False


@pytest.fixture(scope="session")
def starter_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Furnish a home with the real starter; each studio gets a copy."""
    settings = Settings(home=tmp_path_factory.mktemp("starter"))
    prepare(settings)
    return settings.home


def prepare(settings: Settings) -> None:
    """Furnish a home as `studio serve` does."""
    engine = home.open_home(settings)
    home.install_starter(engine, settings)
    with unit_of_work(engine) as db:
        # Measured once a machine: not by each studio that a test starts.
        (probe,) = db.exec(select(Task).where(Task.kind == workers.SPEED_TASK_KIND))
        probe.result = {"seconds": {"float32": 0.01, "bfloat16": 0.08, "float16": 0.1}}
        tasks.close_work(probe, TaskStatus.SUCCEEDED)
    engine.dispose()


@pytest.fixture(scope="session")
def starter_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the included base model."""
    folder = tmp_path_factory.mktemp("starter-model")
    starter.write_model(folder)
    return folder


@pytest.fixture
def make_studio(starter_home: Path, tmp_path: Path) -> Iterator[Callable[..., Studio]]:
    made: list[Studio] = []

    def make(*, warm: bool = False, sign_in: str = "none", evaluates: bool = False) -> Studio:
        studio = Studio.copied(starter_home, tmp_path / f"home-{len(made)}")
        studio.warm, studio.sign_in, studio.evaluates = warm, sign_in, evaluates
        made.append(studio)
        studio.start()
        return studio

    yield make
    for studio in made:
        stop_everything(studio)


@pytest.fixture
def studio(make_studio: Callable[[], Studio]) -> Studio:
    return make_studio()


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def stop_everything(studio: Studio) -> None:
    """End a studio and whatever it trains, and would train."""
    studio.kill()
    studio.wait()
    for folder in (studio.home / "runs").glob("*"):
        if left := process.find_training_process(RunDir(folder)):
            left.kill()
    # One that has only just been started holds no folder yet.
    for other in psutil.process_iter(["cmdline"]):
        if str(studio.home) in " ".join(other.info["cmdline"] or ()):
            with suppress(psutil.NoSuchProcess):
                other.kill()


QUICK: dict[str, Any] = {
    "base_model": "starter",
    "dataset": "starter",
    "precision": "fp32",
    "optimisation": {"max_steps": 30, "per_device_train_batch_size": 8},
    "data": {"max_length": 64},
    "evaluation": {"eval_steps": 15, "per_device_eval_batch_size": 64},
    "samples": {"prompts": 1, "max_new_tokens": 4},
}
"""A real run of a few seconds."""


def submit_run(studio: Studio, name: str = "quick", **optimisation: Any) -> int:  # noqa: ANN401 -- any field of the section
    """Queue a short real run. Return its number."""
    recipe = QUICK | {"optimisation": QUICK["optimisation"] | optimisation}
    answer = studio.api.post("/runs", json={"name": name, "recipe": recipe})
    number: int = answer.raise_for_status().json()["id"]
    return number


def get_run(studio: Studio, number: int) -> dict[str, Any]:
    told: dict[str, Any] = studio.api.get(f"/runs/{number}").raise_for_status().json()
    return told


def launcher_process(studio: Studio) -> psutil.Process:
    """Wait for a studio's warm launcher, and return its process."""
    settings = Settings(home=studio.home)
    wait_until(lambda: workers.read_launcher(settings).state == "ready")
    return psutil.Process(workers.read_launcher(settings).pid)


def metric_steps(studio: Studio, number: int) -> list[float]:
    """Return the steps whose loss the studio knows."""
    answer = studio.api.get(f"/runs/{number}/metrics", params={"keys": "loss", "buckets": 10_000})
    steps: list[float] = answer.raise_for_status().json()["x"]
    return steps
