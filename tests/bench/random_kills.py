"""Random kills: what is left after `kill -9` of each process of a studio that works.

    python -m tests.bench.random_kills --kills 30 --seed 14

A real studio trains short runs and exports them while its worker, launcher, runs, web process and
socket services are killed at random moments, in a seeded order. Only the supervisor restarts
anything; the web process, which an init system would restart, is started again here. In the end
every run and export must have ended, none twice, and no step may have been trained twice.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import psutil

from studio.processes import unix_sockets
from studio.protocols import tokenizer_service
from studio.protocols.events import Event, Finished, MetricsLogged, Resumed, Started
from studio.protocols.run_dir import RunDir
from studio.services.storage import locks
from studio.services.workers import workers
from studio.settings import Settings
from studio.worker.processes import process
from tests.bench.measurement import Measurement
from tests.support.live_studio import (
    QUICK,
    Studio,
    free_port,
    metric_steps,
    prepare,
    stop_everything,
)

ROLES = ("worker", "launcher", "runner", "web", "socket service")
STEPS = 25
MOST_UNFINISHED = 2
PAUSE_SECONDS = (0.2, 5.0)
"""Between two kills: from amid a restart to well after one."""
VICTIM_SECONDS = 20.0
"""How long to wait for a process of the role whose turn it is; then the next role has its turn."""
END_SECONDS = 900.0
FORMATS = ("bfloat16", "float16", "float32")
FINAL = {"succeeded", "failed", "cancelled"}


@dataclass(slots=True)
class Scene:
    """One studio, what was submitted to it, and what was killed of it."""

    studio: Studio
    chance: random.Random
    runs: list[int] = field(default_factory=list)
    exports: list[tuple[int, int]] = field(default_factory=list)
    exported: set[int] = field(default_factory=set)
    killed: Counter[str] = field(default_factory=Counter)
    hit: set[int] = field(default_factory=set)
    """The runs whose own process was killed."""
    web_restarts: int = 0

    def ask(self, method: str, path: str, **given: Any) -> httpx2.Response | None:  # noqa: ANN401 -- httpx2's own
        """Send a request, or return None where the web process is gone; it is restarted then."""
        self.revive()
        with suppress(httpx2.TransportError):
            return getattr(self.studio.api, method)(path, **given)  # type: ignore[no-any-return] # by name
        return None

    def revive(self) -> None:
        """Restart the web process, as an init system does."""
        assert self.studio.process is not None
        if self.studio.process.poll() is not None:
            self.web_restarts += 1
            self.studio.begin()


def measure(kills: int = 30, seed: int = 14) -> Iterator[Measurement]:
    """Kill, wait for the end, and count what was lost or doubled."""
    with TemporaryDirectory() as folder:
        prepare(Settings(home=Path(folder)))
        scene = Scene(Studio(Path(folder), free_port(), warm=True), random.Random(seed))  # noqa: S311 -- a seeded order
        try:
            scene.studio.start()
            _kill_often(scene, kills)
            _await_end(scene)
            yield from _judge(scene)
        finally:
            stop_everything(scene.studio)


def _kill_often(scene: Scene, kills: int) -> None:
    deck: list[str] = []
    while scene.killed.total() < kills:
        if not deck:
            deck = [*ROLES]
            scene.chance.shuffle(deck)
        role = deck.pop()
        _work_for(scene, scene.chance.uniform(*PAUSE_SECONDS))
        if victim := _await_victim(scene, role):
            with suppress(psutil.NoSuchProcess):
                victim.kill()
                scene.killed[role] += 1
                _print(f"kill {scene.killed.total():2d}: {role:14s} {victim.pid}")


def _work_for(scene: Scene, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _feed(scene)
        time.sleep(0.1)


def _await_victim(scene: Scene, role: str) -> psutil.Process | None:
    end = time.monotonic() + VICTIM_SECONDS
    while time.monotonic() < end:
        _feed(scene)
        if role == "socket service":
            with suppress(OSError):
                path = tokenizer_service.socket_path(scene.studio.home)
                unix_sockets.connect(path, timeout=1).close()
        with suppress(psutil.NoSuchProcess, OSError, ValueError, IndexError):
            if victim := FIND[role](scene):
                return victim
        time.sleep(0.1)
    return None


def _feed(scene: Scene) -> None:
    """Keep runs in the queue, and ask for an export of each that has succeeded."""
    states = _states(scene)
    if states is None:
        return
    if len(states) < len(scene.runs):
        raise AssertionError(f"Of {len(scene.runs)} runs, {len(states)} are listed.")
    unfinished = sum(one not in FINAL for one in states.values())
    for run_id in [one for one, state in states.items() if state == "succeeded"]:
        if run_id not in scene.exported:
            _export(scene, run_id)
    if unfinished < MOST_UNFINISHED:
        _submit(scene)


def _submit(scene: Scene) -> None:
    """Submit a run; who hears no answer asks again under the same key."""
    number = len(scene.runs) + 1
    optimisation = QUICK["optimisation"] | {"max_steps": STEPS}
    answer = scene.ask(
        "post",
        "/runs",
        json={"name": f"run-{number}", "recipe": QUICK | {"optimisation": optimisation}},
        headers={"Idempotency-Key": f"run-{number}"},
    )
    if answer is not None and answer.status_code == httpx2.codes.CREATED:
        scene.runs.append(answer.json()["id"])


def _export(scene: Scene, run_id: int) -> None:
    dtype = FORMATS[run_id % len(FORMATS)]
    answer = scene.ask(
        "post",
        f"/runs/{run_id}/exports",
        json={"dtype": dtype},
        headers={"Idempotency-Key": f"export-{run_id}"},
    )
    if answer is not None and answer.status_code == httpx2.codes.CREATED:
        scene.exported.add(run_id)
        scene.exports.append((run_id, answer.json()["id"]))


def _states(scene: Scene) -> dict[int, str] | None:
    answer = scene.ask("get", "/runs", params={"limit": 200})
    if answer is None or answer.status_code != httpx2.codes.OK:
        return None
    return {run["id"]: run["status"] for run in answer.json()["data"]}


def _worker(scene: Scene) -> psutil.Process:
    return psutil.Process(int(locks.describe_holder(scene.studio.home, "worker").split()[1]))


def _launcher(scene: Scene) -> psutil.Process | None:
    pid = workers.read_launcher(Settings(home=scene.studio.home)).pid
    found = psutil.Process(pid) if pid else None
    return (
        found
        if found and found.is_running() and process.PREFORK_SERVER in found.cmdline()
        else None
    )


def _runner(scene: Scene) -> psutil.Process | None:
    for run_id in scene.runs:
        if alive := process.find_training_process(RunDir(scene.studio.home / "runs" / str(run_id))):
            scene.hit.add(run_id)
            return psutil.Process(alive.pid)
    return None


def _web(scene: Scene) -> psutil.Process | None:
    alive = scene.studio.process
    return psutil.Process(alive.pid) if alive and alive.poll() is None else None


def _socket_service(scene: Scene) -> psutil.Process | None:
    names = {"studio.runner.tokenizer.main", "studio.runner.inference.main"}
    served = [one for one in _worker(scene).children() if names & set(one.cmdline())]
    return served[0] if served else None


FIND: dict[str, Callable[[Scene], psutil.Process | None]] = {
    "worker": _worker,
    "launcher": _launcher,
    "runner": _runner,
    "web": _web,
    "socket service": _socket_service,
}


def _await_end(scene: Scene) -> None:
    """Wait for every run and export to end. Whatever has not after a while is reported."""
    end = time.monotonic() + END_SECONDS
    while time.monotonic() < end:
        states = _states(scene)
        if states is not None and FINAL.issuperset(states.values()):
            for run_id in [one for one, state in states.items() if state == "succeeded"]:
                if run_id not in scene.exported:
                    _export(scene, run_id)
            if FINAL.issuperset(_export_states(scene).values()):
                return
        time.sleep(0.5)


def _export_states(scene: Scene) -> dict[tuple[int, int], str]:
    states = {}
    for run_id, export_id in scene.exports:
        answer = scene.ask("get", f"/runs/{run_id}/exports/{export_id}")
        states[run_id, export_id] = answer.json()["status"] if answer is not None else "unknown"
    return states


def _judge(scene: Scene) -> Iterator[Measurement]:
    states, exports = _states(scene) or {}, _export_states(scene)
    for role in ROLES:
        yield Measurement(f"kill -9: {role}", scene.killed[role], "kills")
    yield Measurement("web process started again, as init would", scene.web_restarts, "times")
    yield Measurement("runs submitted", len(scene.runs), "runs")
    for state, count in sorted(Counter(states.values()).items()):
        yield Measurement(f"runs {state}", count, "runs")
    yield Measurement("runs whose own process was killed", len(scene.hit), "runs")
    for state, count in sorted(Counter(exports.values()).items()):
        yield Measurement(f"exports {state}", count, "exports")
    yield Measurement("runs lost", len(set(scene.runs) - set(states)), "runs")
    yield Measurement("runs submitted twice", len(set(states) - set(scene.runs)), "runs")
    yield Measurement(
        "runs without an end", sum(one not in FINAL for one in states.values()), "runs"
    )
    said = {run_id: _events(scene, run_id) for run_id in states}
    why = Counter(_reason(scene, run_id) for run_id, one in states.items() if one == "failed")
    for reason, count in why.items():
        yield Measurement(f"runs failed: {reason}", count, "runs")
    yield Measurement(
        "runs that trained a step twice", sum(map(_has_repeats, said.values())), "runs"
    )
    yield Measurement(
        "runs with two results", sum(_results(one) > 1 for one in said.values()), "runs"
    )
    wrong = [run_id for run_id in states if not _is_whole(scene, run_id, states[run_id])]
    yield Measurement("runs with steps missing or doubled", len(wrong), "runs")


def _reason(scene: Scene, run_id: int) -> str:
    return str(scene.studio.api.get(f"/runs/{run_id}").json()["error"]["message"])


def _is_whole(scene: Scene, run_id: int, state: str) -> bool:
    """Whether the metrics of a run hold each of its steps once."""
    steps = metric_steps(scene.studio, run_id)
    return steps == [
        float(step) for step in range(1, (STEPS if state == "succeeded" else len(steps)) + 1)
    ]


def _events(scene: Scene, run_id: int) -> list[Event]:
    events, _offset = RunDir(scene.studio.home / "runs" / str(run_id)).events.read(0)
    return events


def _has_repeats(said: list[Event]) -> bool:
    """Whether one attempt trained a step twice; another attempt begins where its checkpoint is."""
    seen: set[int] = set()
    for event in said:
        if isinstance(event, Started | Resumed):
            seen.clear()
        if isinstance(event, MetricsLogged) and "loss" in event.metrics:
            if event.step in seen:
                return True
            seen.add(event.step)
    return False


def _results(said: list[Event]) -> int:
    return sum(isinstance(event, Finished) for event in said)


def _print(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=14)
    given = parser.parse_args()
    for figure in measure(given.kills, given.seed):
        sys.stdout.write(f"{figure}\n")
