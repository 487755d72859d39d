"""The process of an engine that serves a model: start it, ask whether it is well, end all of it.

It has its own session, and a mark in its environment by which whatever it started is found, even by
another worker.
"""

import http.client
import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from studio.engines.engine import HOST
from studio.processes.start_time import process_start_time
from studio.services.endpoints import lifecycle
from studio.worker.processes import process
from studio.worker.processes.process import Process

MARK = "STUDIO_ENDPOINT"
"""The environment variable with the home and the number of the endpoint."""

MAX_LOG_BYTES = 16 * 2**20
"""A log that grows beyond it is emptied: engines write a line for each request."""

_PROBE_SECONDS = 3.0
_MAX_ANSWER_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Probe:
    """Where a process answers, and as what."""

    port: int
    key: str
    name: str
    health_path: str


def free_port() -> int:
    """Return a port of this machine on which nothing listens now."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


def mark_of(home: Path, endpoint_id: int) -> str:
    return f"{home}:{endpoint_id}"


def start(command: Sequence[str], log: Path, gpu: int | None, added: Mapping[str, str]) -> Process:
    """Start a process; `added` is added to its environment.

    Raises:
        OSError: It cannot be started.

    """
    log.parent.mkdir(parents=True, exist_ok=True)
    shorten_log(log)
    with log.open("ab") as output:
        child = subprocess.Popen(  # noqa: S603 -- a program that the operator named, no shell
            [*command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=process.environment(gpu) | dict(added),
            cwd=log.parent,
            start_new_session=True,
        )
    return Process(child.pid, process_start_time(child.pid), child)


def shorten_log(log: Path) -> None:
    """Empty a log that has grown too large; what writes it appends."""
    with suppress(OSError):
        if log.stat().st_size > MAX_LOG_BYTES:
            os.truncate(log, 0)


def list_marked(home: Path) -> dict[int, list[psutil.Process]]:
    """Return the processes of a home's endpoints, by the number of the endpoint."""
    found: dict[int, list[psutil.Process]] = {}
    prefix = f"{home}:"
    for one in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            mark = one.environ().get(MARK, "")
            number = mark.removeprefix(prefix)
            if mark.startswith(prefix) and number.isdecimal():
                found.setdefault(int(number), []).append(one)
    return found


def kill_marked(home: Path, endpoint_id: int) -> None:
    """Kill whatever the process of an endpoint has started and left behind."""
    for one in list_marked(home).get(endpoint_id, []):
        with suppress(psutil.Error):
            one.send_signal(signal.SIGKILL)


def is_ready(probe: Probe) -> bool:
    """Whether a process answers, and serves the model that it should.

    Another program may have taken the port: it does not know the key or the name.
    """
    try:
        if _get(probe, probe.health_path, {})[0] != http.client.OK:
            return False
        status, content = _get(probe, "/v1/models", lifecycle.headers(probe.key))
        listed = json.loads(content)["data"] if status == http.client.OK else []
        return probe.name in [one["id"] for one in listed]
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return False


def is_well(probe: Probe) -> bool:
    """Whether a process that was ready still answers."""
    try:
        return _get(probe, probe.health_path, {})[0] == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


def _get(probe: Probe, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, probe.port, timeout=_PROBE_SECONDS)
    try:
        connection.request("GET", path, headers=dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read(_MAX_ANSWER_BYTES)
    finally:
        connection.close()
