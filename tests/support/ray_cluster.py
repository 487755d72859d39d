"""A Ray cluster for tests: one node, in a network namespace of its own.

Ray listens beyond the loopback interface, so it gets a network that has nothing else. Two relays
lead to its dashboard: from a Unix socket in the namespace, and from a port of this process.
"""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp

import psutil

from studio.worker.launchers.jobs.engine import EngineAwayError
from studio.worker.launchers.jobs.launcher import JobLauncher, Timing
from studio.worker.launchers.ray.engine import RayEngine
from tests.support.live_studio import ROOT
from tests.support.waiting import wait_until

VARIABLE = "STUDIO_TEST_RAY"
"""The program `ray` of an environment of its own."""

DASHBOARD_PORT = 28265
_INSTALL = "python3 -m venv ray && ray/bin/pip install 'ray[default]==2.60.0'"


def find_program() -> str | None:
    return os.environ.get(VARIABLE) or shutil.which("ray")


def missing_reason() -> str:
    """Return why no cluster can be started; empty if one can."""
    if find_program() is None:
        return f"no Ray: {_INSTALL}, then set {VARIABLE} to ray/bin/ray"
    tried = subprocess.run([*_unshare(), "/bin/true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "Ray needs a network namespace: unshare --net is denied"


def _unshare() -> list[str]:
    return [shutil.which("unshare") or "unshare", "--net"]


def _network(pid: int) -> str:
    """Return which network a process is in."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


@dataclass(slots=True)
class Relay:
    """Passes connections on from one address to another: a port of loopback, or a Unix socket."""

    source: int | str
    target: int | str
    _listening: socket.socket | None = None
    _open: list[socket.socket] = field(default_factory=list)

    def start(self) -> None:
        family = socket.AF_UNIX if isinstance(self.source, str) else socket.AF_INET
        self._listening = socket.socket(family)
        self._listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listening.bind(_address(self.source))
        self._listening.listen()
        if isinstance(self.source, int):
            self.source = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listening,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections, and end those that are open."""
        listening, self._listening = self._listening, None
        for one in [*self._open, *filter(None, [listening])]:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._open.clear()

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.socket(
                    socket.AF_UNIX if isinstance(self.target, str) else socket.AF_INET
                )
                self._open += (near, far)
                try:
                    far.connect(_address(self.target))
                except OSError:
                    near.close()
                    far.close()
                    continue
                threading.Thread(target=_pass_on_both, args=(near, far), daemon=True).start()


def _address(end: int | str) -> tuple[str, int] | str:
    return end if isinstance(end, str) else ("127.0.0.1", end)


def _pass_on_both(near: socket.socket, far: socket.socket) -> None:
    back = threading.Thread(target=_pass_on, args=(far, near), daemon=True)
    back.start()
    _pass_on(near, far)
    back.join()
    near.close()
    far.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while chunk := source.recv(2**16):
            target.sendall(chunk)
        target.shutdown(socket.SHUT_WR)


@dataclass(slots=True)
class RayCluster:
    folder: Path
    token: str = field(default_factory=lambda: secrets.token_hex(16))
    process: subprocess.Popen[bytes] | None = None
    relay: Relay | None = None

    @property
    def url(self) -> str:
        assert self.relay is not None
        return f"http://127.0.0.1:{self.relay.source}"

    def start(self) -> None:
        program = find_program()
        assert program is not None
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token}
        own |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (self.folder / "out").open("ab") as log:
            self.process = subprocess.Popen(
                [*_unshare(), sys.executable, "-m", __name__, program, str(self.folder)],
                stdout=log,
                stderr=log,
                env=os.environ | own,
                start_new_session=True,
            )
        self.relay = Relay(0, str(self.folder / "dashboard.sock"))
        self.relay.start()
        wait_until(self._answers)

    def stop(self) -> None:
        assert self.process is not None
        if self.relay is not None:
            self.relay.stop()
        # Ray's processes have sessions of their own; they are in the namespace of this one.
        own = _network(self.process.pid)
        for one in psutil.process_iter():
            with suppress(OSError, psutil.Error):
                if _network(one.pid) == own:
                    one.kill()
        self.process.wait()

    def go_away(self) -> None:
        assert self.relay is not None
        self.relay.stop()

    def come_back(self) -> None:
        assert self.relay is not None
        self.relay.start()

    def kill_raylet(self) -> None:
        """Kill what starts and watches processes on a node, as its death does."""
        for one in psutil.process_iter(["cmdline"]):
            words = one.info["cmdline"] or []
            if words and words[0].endswith("/raylet") and str(self.folder) in " ".join(words):
                one.send_signal(signal.SIGKILL)

    def launcher(self, command: Sequence[str], timing: Timing) -> JobLauncher:
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        engine = RayEngine(self.url, self.token, environment=environment)
        return JobLauncher(engine, "test", sys.executable, command, timing=timing)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "out").read_text()
        try:
            RayEngine(self.url, self.token).find(["nothing"])
        except EngineAwayError:
            return False
        return True


@contextmanager
def run_cluster() -> Iterator[RayCluster]:
    """Run a cluster of its own for this process, and delete it afterwards."""
    cluster = RayCluster(Path(mkdtemp(prefix="ray-")))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)


def _main(program: str, folder: str) -> None:
    """Start a cluster in this process's own network, and lead to its dashboard until the end."""
    subprocess.run([shutil.which("ip") or "ip", "link", "set", "lo", "up"], check=True)
    ports = ("--port=26379", f"--dashboard-port={DASHBOARD_PORT}", "--dashboard-host=127.0.0.1")
    options = ("--head", "--node-ip-address=127.0.0.1", "--num-cpus=4", f"--temp-dir={folder}/r")
    subprocess.run([program, "start", *options, *ports, "--disable-usage-stats"], check=True)
    Relay(f"{folder}/dashboard.sock", DASHBOARD_PORT).start()
    signal.pause()


if __name__ == "__main__":
    _main(*sys.argv[1:])
