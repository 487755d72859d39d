"""Diagnose why a process ended without a final event, from its exit and its last output."""

import re
import signal
from dataclasses import dataclass

from studio.errors import FilesLostError, StudioError
from studio.protocols.events import DISK_FULL, DISK_FULL_EXIT_CODE, Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """How a process ended, as far as its launcher knows."""

    exit_code: int | None = None
    """Negative for a signal; None if it could not be observed."""
    out_of_memory: bool = False
    """Whether the system reports killing a process because memory ran out meanwhile."""
    hung: bool = False
    """Whether the worker ended it because it had reported nothing for too long."""
    rebooted: bool = False
    silent: bool = False
    """Whether its machine, which is not the studio's, has shown no sign of life for too long."""
    cluster: str = ""
    """What the cluster said of its end, if the process itself did not report it."""
    disk_full: bool = False
    """Whether the disk that holds its folder is full."""
    last_line: str = ""
    """The last line of its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    code: str
    message: str
    hint: str
    is_transient: bool = False
    """Whether a retry is likely to help: nothing suggests an error in the run itself."""
    max_attempts: int = 3


TRAINING = "training"
"""What a run's process is called in messages."""


def diagnose(process_exit: ProcessExit, work: str, where: str = "") -> ExitCause:
    """Return the cause of an exit, checking the exact ones first.

    `work` names the kind of process and `where` the phase or step, as text for the message.

    """
    exact_causes = (
        (process_exit.rebooted, _REBOOT),
        (process_exit.silent, _SILENT),
        (process_exit.hung, _HUNG),
        (process_exit.exit_code == DISK_FULL_EXIT_CODE, _NO_ROOM),
    )
    if cause := next((cause for applies, cause in exact_causes if applies), None):
        return cause
    if (
        cause := _out_of_memory(work)
        if process_exit.out_of_memory
        else _by_last_line(process_exit, work)
    ):
        return cause
    if process_exit.cluster:
        return _ended_by_cluster(process_exit.cluster)
    if process_exit.exit_code is None:
        return _unobserved(work)
    if process_exit.exit_code < 0 and -process_exit.exit_code not in _CRASHES:
        return _killed(work, process_exit.exit_code)
    return _crashed(work, where, process_exit)


def to_failed_event(cause: ExitCause, times: int = 1) -> Failed:
    attempts = f" It was attempted {times} times." if times > 1 else ""
    return Failed(code=cause.code, message=cause.message + attempts, hint=cause.hint)


def folder_lost_error() -> FilesLostError:
    return FilesLostError(
        "Its folder was deleted or moved while it was running, so it was stopped.",
        hint="Start it again. Checkpoints that were in the folder are lost.",
    )


def events_lost_error(name: str) -> FilesLostError:
    return FilesLostError(
        f"Its file {name} was deleted or truncated while it was running, so it was stopped.",
        hint="Start it again, and don't change the files in its folder until it ends.",
    )


def monitoring_failure(error: Exception, work: str) -> Failed:
    """Return why work was stopped that could not be monitored: `work` is "run" or "export"."""
    if isinstance(error, StudioError):
        return Failed(code=error.code, message=error.message, hint=error.hint)
    return Failed(
        code="not_followed",
        message=f"The worker could not monitor this {work}, so it was stopped: "
        f"{_short_reason(error)}.",
        hint="Check the files in its folder and the worker's log, then start it again.",
    )


def _short_reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = str(error.filename or "").rpartition("/")[2]
        return f"{error.strerror} ({name})" if name else error.strerror
    return type(error).__name__


def signal_name(exit_code: int | None) -> str:
    """Return the name of the signal that ended a process, or an empty string."""
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS}
)
"""Signals that a process causes itself; others come from outside."""

_REBOOT = ExitCause(
    code="lost_worker",
    message="The machine was restarted while the run was training.",
    hint="Retry: it resumes from its newest checkpoint.",
    is_transient=True,
)
_SILENT = ExitCause(
    code="lost_worker",
    message="The machine that trained the run no longer answers.",
    hint="Check that machine and its network. Retry: it resumes from its newest checkpoint.",
    is_transient=True,
)
_HUNG = ExitCause(
    code="hang",
    message="The training process reported nothing for too long and was stopped.",
    hint="The end of its log shows where it was. Retry from its newest checkpoint.",
    is_transient=True,
    max_attempts=2,
)
_NO_ROOM = ExitCause(code=DISK_FULL.code, message=DISK_FULL.message, hint=DISK_FULL.hint)


def _out_of_memory(work: str) -> ExitCause:
    return ExitCause(
        code="out_of_memory",
        message=f"The system killed the {work} process because this machine ran out of memory.",
        hint="Lower the batch size or the max sequence length, or choose a smaller model.",
    )


def _disk_full(work: str) -> ExitCause:
    return ExitCause(
        code="disk_full",
        message=f"The disk is full, so the {work} process could not report why it ended.",
        hint="Delete old runs or models, then try again.",
    )


def _missing_package(work: str) -> ExitCause:
    return ExitCause(
        code="dependency_missing",
        message=f"A Python package that the {work} process needs could not be loaded",
        hint="Install the training packages; studio doctor lists what is missing.",
    )


def _unobserved(work: str) -> ExitCause:
    return ExitCause(
        code="lost_worker",
        message=f"The {work} process ended after its worker did, so there is no record of how it "
        "ended.",
        hint=f"Try again{': it resumes from its newest checkpoint' * (work == TRAINING)}.",
        is_transient=True,
    )


def _ended_by_cluster(reason: str) -> ExitCause:
    return ExitCause(
        code="lost_worker",
        message=f"The cluster ended the training job. {reason}",
        hint="Ask your operator why, then retry: it resumes from its newest checkpoint.",
        is_transient=True,
    )


_LAST_LINE_CAUSES = (
    (r"No space left on device|Disk quota exceeded", _disk_full),
    (r"^MemoryError|Cannot allocate memory|DefaultCPUAllocator", _out_of_memory),
    (r"^(ModuleNotFound|Import)Error", _missing_package),
)
"""The last output of a Python process that ends before it can report a failure."""


def _by_last_line(process_exit: ProcessExit, work: str) -> ExitCause | None:
    if process_exit.disk_full and (process_exit.exit_code or 0) > 0:
        return _disk_full(work)
    causes = (
        make_cause
        for pattern, make_cause in _LAST_LINE_CAUSES
        if re.search(pattern, process_exit.last_line)
    )
    make_cause = next(causes, None)
    if make_cause is not _missing_package:
        return make_cause(work) if make_cause else None
    cause = make_cause(work)
    message = f"{cause.message}: {process_exit.last_line.partition(': ')[2]}."
    return ExitCause(code=cause.code, message=message, hint=cause.hint)


def _killed(work: str, exit_code: int) -> ExitCause:
    name = signal_name(exit_code)
    memory = " The machine may have run out of memory: lower the batch size."
    return ExitCause(
        code="killed",
        message=f"The {work} process was killed from outside the studio ({name}).",
        hint="If this was not intended, run again." + (memory if name == "SIGKILL" else ""),
        is_transient=True,
    )


def _crashed(work: str, where: str, process_exit: ProcessExit) -> ExitCause:
    name = signal_name(process_exit.exit_code)
    if name:
        message = f"The {work} process crashed in compiled code{where} ({name})."
    else:
        last, code = process_exit.last_line.rstrip("."), process_exit.exit_code
        message = (
            f"The {work} process exited{where} with code {code}; its last output was: {last}."
            if last
            else f"The {work} process exited{where} with code {code} and printed nothing."
        )
    return ExitCause(
        code="crashed", message=message, hint="The last lines of its log may explain why."
    )
