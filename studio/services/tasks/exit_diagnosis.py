"""Why a process of ours is gone that said nothing: told by how it ended, and what it printed."""

import re
import signal
from dataclasses import dataclass

from studio.errors import FilesLostError, StudioError
from studio.protocols.events import DISK_FULL, DISK_FULL_EXIT_CODE, Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """How a process ended, as far as its launcher knows."""

    exit_code: int | None = None
    """Negative for a signal; None where nobody could know it."""
    out_of_memory: bool = False
    """Whether the system says that it killed something for want of memory meanwhile."""
    hung: bool = False
    """Whether the worker ended it because it had said nothing for too long."""
    rebooted: bool = False
    disk_full: bool = False
    """Whether there is no room left where its folder is."""
    last_line: str = ""
    """The last line that it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitCause:
    code: str
    message: str
    hint: str
    is_transient: bool = False
    """Whether another try may well end better: nothing speaks for a mistake in the run itself."""
    max_attempts: int = 3


TRAINING = "training"
"""What the process of a run is called in a sentence."""


def diagnose(end: ProcessExit, work: str, where: str = "") -> ExitCause:
    """Find the cause that fits, of what work and where in it; the exact ones come first."""
    seen = (
        (end.rebooted, _REBOOT),
        (end.hung, _HUNG),
        (end.exit_code == DISK_FULL_EXIT_CODE, _NO_ROOM),
    )
    if why := next((why for is_so, why in seen if is_so), None):
        return why
    if why := _out_of_memory(work) if end.out_of_memory else _by_last_line(end, work):
        return why
    if end.exit_code is None:
        return _unobserved(work)
    if end.exit_code < 0 and -end.exit_code not in _CRASHES:
        return _killed(work, end.exit_code)
    return _crashed(work, where, end)


def to_failed_event(why: ExitCause, times: int = 1) -> Failed:
    again = f" It was tried {times} times." if times > 1 else ""
    return Failed(code=why.code, message=why.message + again, hint=why.hint)


def folder_lost_error() -> FilesLostError:
    return FilesLostError(
        "Its folder was deleted or moved while it ran, so it was ended.",
        hint="Start it again. Checkpoints that were in the folder are gone.",
    )


def events_lost_error(name: str) -> FilesLostError:
    return FilesLostError(
        f"Its file {name} was deleted or cut off while it ran, so it was ended.",
        hint="Start it again, and leave the files in its folder alone until it ends.",
    )


def monitoring_failure(error: Exception, work: str) -> Failed:
    """Return why work was ended whose process could not be followed: `work` is "run", "export"."""
    if isinstance(error, StudioError):
        return Failed(code=error.code, message=error.message, hint=error.hint)
    return Failed(
        code="not_followed",
        message=f"The worker could not follow this {work}, so it was ended: "
        f"{_short_reason(error)}.",
        hint="Look at the files in its folder and at the worker's log, then start it again.",
    )


def _short_reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = str(error.filename or "").rpartition("/")[2]
        return f"{error.strerror} ({name})" if name else error.strerror
    return type(error).__name__


def signal_name(exit_code: int | None) -> str:
    """Return the name of the signal that ended a process, or nothing."""
    if exit_code is None or exit_code >= 0:
        return ""
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS}
)
"""Signals a process brings upon itself; others come from outside."""

_REBOOT = ExitCause(
    code="lost_worker",
    message="The machine was started anew while the run trained.",
    hint="Try again: it goes on from its newest checkpoint.",
    is_transient=True,
)
_HUNG = ExitCause(
    code="hang",
    message="The training process said nothing for too long, and was ended.",
    hint="The end of its log shows where it stood. Try again from its newest checkpoint.",
    is_transient=True,
    max_attempts=2,
)
_NO_ROOM = ExitCause(code=DISK_FULL.code, message=DISK_FULL.message, hint=DISK_FULL.hint)


def _out_of_memory(work: str) -> ExitCause:
    return ExitCause(
        code="out_of_memory",
        message=f"The system ended the {work} process because this machine ran out of memory.",
        hint="Lower the batch size, shorten the longest example, or choose a smaller model.",
    )


def _disk_full(work: str) -> ExitCause:
    return ExitCause(
        code="disk_full",
        message=f"The disk is full, so the {work} process could not even write why it ended.",
        hint="Delete old runs or models, then try again.",
    )


def _missing_package(work: str) -> ExitCause:
    return ExitCause(
        code="dependency_missing",
        message=f"A Python package that the {work} process needs does not load",
        hint="Install the training packages; studio doctor lists what is missing.",
    )


def _unobserved(work: str) -> ExitCause:
    return ExitCause(
        code="lost_worker",
        message=f"The {work} process is gone, and the worker that could have seen how it ended "
        "was gone before it.",
        hint=f"Try again{': it goes on from its newest checkpoint' * (work == TRAINING)}.",
        is_transient=True,
    )


_LAST_LINE_CAUSES = (
    (r"No space left on device|Disk quota exceeded", _disk_full),
    (r"^MemoryError|Cannot allocate memory|DefaultCPUAllocator", _out_of_memory),
    (r"^(ModuleNotFound|Import)Error", _missing_package),
)
"""What an interpreter prints last that ends before it can say anything in order."""


def _by_last_line(end: ProcessExit, work: str) -> ExitCause | None:
    if end.disk_full and (end.exit_code or 0) > 0:
        return _disk_full(work)
    fits = (why for pattern, why in _LAST_LINE_CAUSES if re.search(pattern, end.last_line))
    why = next(fits, None)
    if why is not _missing_package:
        return why(work) if why else None
    told = why(work)
    message = f"{told.message}: {end.last_line.partition(': ')[2]}."
    return ExitCause(code=told.code, message=message, hint=told.hint)


def _killed(work: str, exit_code: int) -> ExitCause:
    name = signal_name(exit_code)
    memory = " The machine may have run out of memory: lower the batch size."
    return ExitCause(
        code="killed",
        message=f"The {work} process was killed from outside ({name}).",
        hint=f"If nobody did so: run again.{memory if name == 'SIGKILL' else ''}",
        is_transient=True,
    )


def _crashed(work: str, where: str, end: ProcessExit) -> ExitCause:
    name = signal_name(end.exit_code)
    if name:
        message = f"A crash in compiled code ended the {work} process{where} ({name})."
    else:
        last, code = end.last_line.rstrip("."), end.exit_code
        message = (
            f"The {work} process ended itself{where} with exit code {code}; the last it printed "
            f"was: {last}."
            if last
            else f"The {work} process ended itself{where} with exit code {code}, and printed "
            "nothing."
        )
    return ExitCause(
        code="crashed", message=message, hint="The last lines of its log may say more."
    )
