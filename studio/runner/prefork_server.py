"""The prefork server: it has loaded the training packages and forks runs.

Started as `python -m studio.runner.prefork_server RUNS`.

The worker starts it with one end of a socket pair as its standard input and holds the other, so no
other process can connect, and the server notices at once when the worker is gone. A fork copies
only the thread that calls it, so the server must have a single thread and no initialised GPU. If it
does, it reports that and exits, and the worker starts runs without it. RUNS only identifies the
server's owner in a process list.

    worker                 server          waiter                  run
    root, env, log, go ──▶ fork ─────────▶ fork ─────────────────▶ its own session and log
           ◀────────────────────────────────────────────────────── its pid
    a byte into `go` ────────────────────────────────────────────▶ trains, as `studio.runner` does
                                           exit code into its folder ◀ ends

The server ends with its worker. Each run has a waiter as its parent, which lives as long as the run
and only records its exit code, so that a later worker can read it.
"""

import gc
import json
import os
import random
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from studio.methods import METHODS
from studio.processes import parent_death, single_thread
from studio.processes.unix_sockets import is_hung_up
from studio.protocols.run_dir import RunDir
from studio.runner.__main__ import clean_environment, main
from studio.runner.optional_packages import block_packages_except

MESSAGE_BYTES = 2**18

_LATE_MODULES = (
    "peft.utils.transformers_weight_conversion",
    "transformers.models.llama.modeling_llama",
)
"""Modules that most runs load after their start."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A run to start: its folder and its process's environment."""

    root: Path
    env: dict[str, str]
    log: int
    """File descriptor for its output."""
    confirm: int
    """File descriptor that receives a byte if the run is still wanted once it has started."""

    @classmethod
    def receive(cls, connection: socket.socket) -> "LaunchRequest | None":
        """Wait for the next request. Return None if the worker is gone."""
        message, (*files,), _flags, _sender = socket.recv_fds(connection, MESSAGE_BYTES, 2)
        if not message:
            return None
        fields = json.loads(message)
        return cls(Path(fields["root"]), fields["env"], *files)

    def close(self) -> None:
        os.close(self.log)
        os.close(self.confirm)


def preload() -> str:
    """Load what runs need. Return why this process must not be forked, or ""."""
    clean_environment()
    # A run that needs more is spawned: a fork cannot import what is marked absent here.
    block_packages_except(())
    # Detecting CUDA is allowed; initialising it would make it unusable in a fork.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.update(single_thread.ENVIRONMENT)
    import_module("numpy")
    import_module("pyarrow")
    # Only during these two imports: a torch with OpenBLAS inside must keep its threads.
    for name in single_thread.ENVIRONMENT:
        del os.environ[name]
    import_module("studio.runner.execution")
    import_module("studio.runner.training_run")
    for name in [f"studio.methods.{method}.trainer" for method in METHODS] + list(_LATE_MODULES):
        import_module(name)
    return _fork_obstacle()


def serve_requests(connection: socket.socket) -> LaunchRequest | None:
    """Fork a run for each request, until the worker is gone.

    Returns twice: None in the server, at the end; and its request in each run.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # waiters that end do not become zombies
    while request := LaunchRequest.receive(connection):
        if os.fork() == 0:
            _fork_run(request, connection)
            return request
        request.close()
    return None


def _fork_run(request: LaunchRequest, connection: socket.socket) -> None:
    """Fork a run, in which this returns; its waiter stays, records the exit code and exits."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        return
    try:
        connection.close()
        request.close()
        _set_process_name(f"studio wait {request.root.name}")
        _record_exit_code(pid, request.root)
    finally:  # Whatever happens, a waiter must never continue as the server.
        os._exit(0)


def run_child(request: LaunchRequest, connection: socket.socket) -> int:
    """Turn this child into the process that trains the run. Return its exit code."""
    os.setsid()
    os.dup2(request.log, 1)
    os.dup2(request.log, 2)
    os.environ.clear()
    os.environ.update(request.env)
    _reseed()
    _set_process_name(f"studio run {request.root.name}")
    reason = _gpu_obstacle()
    connection.send(json.dumps({"pid": os.getpid(), "why": reason}).encode())
    connection.close()
    if reason:
        return 1
    confirmed = os.read(request.confirm, 1)
    request.close()
    return main(request.root) if confirmed else 0


def _set_process_name(name: str) -> None:
    """Change the name that `ps` shows for this process, where the system supports it."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="utf-8")


def _fork_obstacle() -> str:
    torch = import_module("torch")
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return "The training packages have started threads, which a fork does not copy."
    if torch.cuda.is_initialized():
        return "The training packages have initialised the GPU, which a fork cannot use."
    return ""


def _gpu_obstacle() -> str:
    """Return why the GPU cannot be used after a fork, or ""; only the child can tell."""
    torch = import_module("torch")
    if torch.cuda._is_in_bad_fork():  # noqa: SLF001 -- torch has no public name for it
        return "The training packages have touched the GPU, which a fork cannot use."
    return ""


def _record_exit_code(pid: int, root: Path) -> None:
    """Write a child's exit code to its folder, and only then reap the child."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None  # noqa: S101 -- without WNOHANG it waits
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with suppress(OSError):  # The disk is full or the folder is gone: the code stays unknown.
        RunDir(root).write_exit_code(pid, code)
    os.waitpid(pid, 0)


def _reseed() -> None:
    """Seed each child's random generators as in a newly started process."""
    numpy, torch = import_module("numpy"), import_module("torch")
    random.seed()
    numpy.random.seed()
    torch.default_generator.manual_seed(torch.default_generator.initial_seed())


def _main() -> int:
    # Duplicate it, so that the socket is not a child's standard input.
    connection = socket.socket(fileno=os.dup(0))
    parent_death.kill_on_parent_death(lambda: is_hung_up(connection))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    reason = preload()
    gc.collect()
    gc.freeze()
    connection.send(json.dumps({"why": reason}).encode())
    if reason:
        return 1
    request = serve_requests(connection)
    return 0 if request is None else run_child(request, connection)


if __name__ == "__main__":
    gc.disable()
    sys.exit(_main())
