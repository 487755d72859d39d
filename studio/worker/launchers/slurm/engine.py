"""Slurm, by its own commands: sbatch, squeue and scancel.

squeue's columns are read and not its JSON, which always lists all jobs of the cluster in Slurm
22.05 and has other fields in later versions.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from studio.errors import InvalidError
from studio.services.tasks.exit_diagnosis import ProcessExit
from studio.settings import without_secrets
from studio.worker.launchers.jobs.engine import (
    EngineAwayError,
    EngineJob,
    JobRefusedError,
    JobRequest,
    JobState,
    decode_exit,
)

COMMANDS = ("sbatch", "squeue", "scancel")
_SECONDS = 30.0
"""How long a command may take."""

_COLUMNS = {"Name": 100, "State": 20, "exit_code": 12, "Reason": 60}
"""What to ask squeue for, and the width of each column."""

_WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
    | {"SPECIAL_EXIT", "STOPPED", "SUSPENDED"}
)
_RUNNING = frozenset({"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"})
"""States as in squeue(1); all others are ends."""

_AWAY = re.compile(
    r"contact slurm|connect failure|[Cc]onnection|timed out|authentication|munge|slurm_receive"
    r"|temporarily|try again|Communication|Unexpected message|not responding|configuration source"
)
"""What commands say when the controller does not answer."""

_WRONG = re.compile(r"[Ii]nvalid|[Uu]nrecognized|unknown option")
"""What sbatch says of options that it will never accept."""


@dataclass(frozen=True, slots=True)
class SlurmEngine:
    options: Sequence[str] = ()
    """The operator's own options for sbatch."""
    gpus: int = 0
    title: str = "Slurm"

    def check(self) -> None:
        """Check the commands, the controller and the options.

        Raises:
            StudioError: one of them is wrong; the message says which.

        """
        if missing := [name for name in COMMANDS if shutil.which(name) is None]:
            raise InvalidError(
                f"Runs are to train on Slurm, but {', '.join(missing)} cannot be found.",
                hint="Install Slurm's commands where the studio runs, or set "
                "STUDIO_LAUNCHER=local.",
            )
        self.find(["studio"])
        tried = _run(["sbatch", "--test-only", *self._options("studio")], "#!/bin/sh\n")
        if tried.returncode and _WRONG.search(tried.stderr):
            raise InvalidError(
                f"Slurm refuses the jobs of runs: {_reason(tried.stderr)}",
                hint="Correct STUDIO_SLURM_OPTIONS or STUDIO_JOB_GPUS.",
            )

    def find(self, names: Collection[str]) -> Mapping[str, EngineJob]:
        form = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
        wanted = ("--me", f"--name={','.join(names)}", "--states=all", "--noheader")
        done = _run(["squeue", *wanted, f"--Format={form}"])
        if done.returncode:
            raise EngineAwayError(f"Slurm does not answer: {_reason(done.stderr)}")
        return parse_queue(done.stdout)

    def submit(self, request: JobRequest) -> None:
        log = (f"--output={_escape(str(request.log))}", "--open-mode=append")
        script = f"#!/bin/sh\nexec {shlex.join(request.command)}\n"
        done = _run(["sbatch", *self._options(request.name), *log], script)
        if done.returncode and _AWAY.search(done.stderr):
            raise EngineAwayError(f"Slurm does not answer: {_reason(done.stderr)}")
        if done.returncode:
            raise JobRefusedError(
                f"Slurm refuses the job: {_reason(done.stderr)}",
                hint="Ask your operator to check STUDIO_SLURM_OPTIONS.",
            )

    def cancel(self, name: str, *, only_waiting: bool = False) -> None:
        kind = ("--state=PENDING",) if only_waiting else ()
        done = _run(["scancel", "--me", f"--name={name}", *kind])
        if done.returncode and _AWAY.search(done.stderr):
            raise EngineAwayError(f"Slurm does not answer: {_reason(done.stderr)}")

    def _options(self, name: str) -> list[str]:
        """Return the options of a job; the last of two that contradict each other counts."""
        gpus = [f"--gres=gpu:{self.gpus}"] if self.gpus else []
        fixed = ["--parsable", f"--job-name={name}", "--no-requeue", "--signal=B:TERM@120"]
        return ["--nodes=1", "--ntasks=1", *gpus, *self.options, *fixed]


def parse_queue(text: str) -> dict[str, EngineJob]:
    """Return the jobs in squeue's columns, by name; of two with a name, the one that lives."""
    jobs: dict[str, EngineJob] = {}
    for line in text.splitlines():
        values, start = [], 0
        for width in _COLUMNS.values():
            values.append(line[start : start + width].strip())
            start += width
        name, state, code, reason = values
        known = jobs.get(name)
        if known is None or known.state is JobState.ENDED:
            jobs[name] = _parse_job(state, code, reason)
    return jobs


def _parse_job(state: str, code: str, reason: str) -> EngineJob:
    if state in _WAITING:
        shown = reason if state == "PENDING" else state
        return EngineJob(JobState.WAITING, "" if shown == "None" else shown)
    if state in _RUNNING:
        return EngineJob(JobState.RUNNING)
    is_out = state == "OUT_OF_MEMORY"
    end = ProcessExit(exit_code=_exit_code(state, code), out_of_memory=is_out)
    return EngineJob(JobState.ENDED, state if reason == "None" else f"{state}, {reason}", end)


def _exit_code(state: str, code: str) -> int | None:
    """Return the exit code in a wait status; None if the job did not end by itself."""
    if state not in {"COMPLETED", "FAILED", "OUT_OF_MEMORY"} or not code.isdigit():
        return None
    status = int(code)
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    return decode_exit(os.WEXITSTATUS(status))


def _run(command: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
    """Run one of Slurm's commands.

    Raises:
        EngineAwayError: it cannot be started, or takes too long.

    """
    try:
        return subprocess.run(  # noqa: S603 -- Slurm's command, our own arguments
            command,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env=without_secrets(os.environ),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineAwayError(f"Slurm does not answer: {command[0]} {error}") from error


def _reason(text: str) -> str:
    """Return the last line of what a command has printed, without its own name."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["no reason given"]
    return re.sub(r"^\w+: (error|fatal): ", "", lines[-1]).rstrip(".") + "."


def _escape(path: str) -> str:
    """Return a path whose percent signs stand for themselves."""
    return path.replace("%", "%%")
