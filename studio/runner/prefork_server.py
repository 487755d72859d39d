"""A launcher that has loaded what a run loads, and forks runs.

Started as `python -m studio.runner.prefork_server RUNS`.

The worker starts it with one end of a pair of sockets as its standard input, and holds the other:
nobody else can reach it, and it hears at once that the worker is gone. A fork copies only the
thread that calls it, so the launcher must have no other, and no GPU; if it has, it says so and
leaves, and the worker starts runs without it. RUNS only tells in a list of processes whose it is.

    worker                 launcher        waiter                  run
    root, env, log, go ──▶ fork ─────────▶ fork ─────────────────▶ a session and a log of its own
           ◀────────────────────────────────────────────────────── its pid
    a byte into `go` ────────────────────────────────────────────▶ trains, as `studio.runner` does
                                           exit code into its folder ◀ ends

The launcher ends with its worker. Each run has a waiter for a parent, which stays as long as the
run and does nothing but write down how that ends: whoever comes later can tell.
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
from studio.processes import parent_death
from studio.processes.unix_sockets import is_hung_up
from studio.protocols.run_dir import RunDir
from studio.runner.__main__ import clean_environment, main
from studio.runner.optional_packages import block_packages_except

MESSAGE_BYTES = 2**18

_LATE_MODULES = (
    "peft.utils.transformers_weight_conversion",
    "transformers.models.llama.modeling_llama",
)
"""What most runs load later than at their start."""

_SINGLE_THREAD_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""What keeps numpy and pyarrow from starting threads as they are loaded."""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """A run to start: where it lies, and what its process is to find."""

    root: Path
    env: dict[str, str]
    log: int
    """The file descriptor it prints to."""
    confirm: int
    """Where a byte arrives if somebody still wants it once it is there."""

    @classmethod
    def receive(cls, line: socket.socket) -> "LaunchRequest | None":
        """Wait for the next one. None: the worker is gone."""
        message, (*files,), _flags, _sender = socket.recv_fds(line, MESSAGE_BYTES, 2)
        if not message:
            return None
        told = json.loads(message)
        return cls(Path(told["root"]), told["env"], *files)

    def close(self) -> None:
        os.close(self.log)
        os.close(self.confirm)


def preload() -> str:
    """Load what runs need. Return why this process must not be forked, or nothing."""
    clean_environment()
    # A run that needs more is spawned: what is absent here, no fork can find again.
    block_packages_except(())
    # CUDA may be looked for, but not begun: a child could never use it.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    os.environ.update(_SINGLE_THREAD_ENVIRONMENT)
    import_module("numpy")
    import_module("pyarrow")
    # Only those two: a torch with OpenBLAS inside must keep its threads.
    for name in _SINGLE_THREAD_ENVIRONMENT:
        del os.environ[name]
    import_module("studio.runner.execution")
    import_module("studio.runner.training_run")
    for name in [f"studio.methods.{method}.trainer" for method in METHODS] + list(_LATE_MODULES):
        import_module(name)
    return _fork_obstacle()


def serve_requests(line: socket.socket) -> LaunchRequest | None:
    """Fork as often as asked, until the worker is gone.

    Returns twice: in the launcher None, at the end; and in each run what it is to do.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # waiters that have ended are no zombies
    while asked := LaunchRequest.receive(line):
        if os.fork() == 0:
            _fork_run(asked, line)
            return asked
        asked.close()
    return None


def _fork_run(asked: LaunchRequest, line: socket.socket) -> None:
    """Fork a run, which returns; its waiter stays, writes down how it ends, and ends itself."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        return
    try:
        line.close()
        asked.close()
        _set_process_name(f"studio wait {asked.root.name}")
        _record_exit_code(pid, asked.root)
    finally:  # Whatever happens, a waiter must not go on as the launcher.
        os._exit(0)


def run_child(asked: LaunchRequest, line: socket.socket) -> int:
    """Turn this child into the process that trains the run. Return its exit code."""
    os.setsid()
    os.dup2(asked.log, 1)
    os.dup2(asked.log, 2)
    os.environ.clear()
    os.environ.update(asked.env)
    _reseed()
    _set_process_name(f"studio run {asked.root.name}")
    refused = _gpu_obstacle()
    line.send(json.dumps({"pid": os.getpid(), "why": refused}).encode())
    line.close()
    if refused:
        return 1
    wanted = os.read(asked.confirm, 1)
    asked.close()
    return main(asked.root) if wanted else 0


def _set_process_name(name: str) -> None:
    """Change what `ps` shows of this process, where the system lets it be said."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name, encoding="utf-8")


def _fork_obstacle() -> str:
    torch = import_module("torch")
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        return "The training packages have started threads, which no fork copies."
    if torch.cuda.is_initialized():
        return "The training packages have begun to use the GPU, which no fork may go on with."
    return ""


def _gpu_obstacle() -> str:
    """Say so if the GPU cannot be used after a fork; only the child can tell."""
    torch = import_module("torch")
    if torch.cuda._is_in_bad_fork():  # noqa: SLF001 -- torch has no public name for it
        return "The training packages have touched the GPU, which no fork may go on with."
    return ""


def _record_exit_code(pid: int, root: Path) -> None:
    """Leave a child's exit code in its folder, and only then let the system forget the child."""
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None  # noqa: S101 -- without WNOHANG it waits
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with suppress(OSError):  # A full disk, or a folder that is gone: the code stays unknown.
        RunDir(root).write_exit_code(pid, code)
    os.waitpid(pid, 0)


def _reseed() -> None:
    """Give each child the dice of a process that has just begun."""
    numpy, torch = import_module("numpy"), import_module("torch")
    random.seed()
    numpy.random.seed()
    torch.default_generator.manual_seed(torch.default_generator.initial_seed())


def _main() -> int:
    # A copy, so that a child's standard input is not the line: nothing comes from there.
    line = socket.socket(fileno=os.dup(0))
    parent_death.kill_on_parent_death(lambda: is_hung_up(line))
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)
    why = preload()
    gc.collect()
    gc.freeze()
    line.send(json.dumps({"why": why}).encode())
    if why:
        return 1
    asked = serve_requests(line)
    return 0 if asked is None else run_child(asked, line)


if __name__ == "__main__":
    gc.disable()
    sys.exit(_main())
