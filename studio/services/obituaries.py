"""Why a process of ours is gone that said nothing: told by how it ended."""

import signal
from dataclasses import dataclass

from studio.events import NO_ROOM, NO_ROOM_EXIT, Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """How a process ended, as far as its launcher knows."""

    exit_code: int | None = None
    """Negative for a signal; None where nobody could know it."""
    out_of_memory: bool = False
    """Whether the system says that it killed something for want of memory meanwhile."""
    hung: bool = False
    """Whether the worker ended it because it had said nothing for too long."""
    rebooted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    code: str
    message: str
    hint: str
    is_chance: bool = False
    """Whether another try may well end better: nothing speaks for a mistake in the run itself."""
    tries: int = 3


def of(end: End, work: str, where: str = "") -> Why:
    """Find the cause that fits, of what work and where in it; the exact ones come first."""
    if end.rebooted:
        return _REBOOT
    if end.hung:
        return _HUNG
    if end.exit_code == NO_ROOM_EXIT:
        return Why(code=NO_ROOM.code, message=NO_ROOM.message, hint=NO_ROOM.hint)
    if end.out_of_memory:
        return _memory(work)
    if end.exit_code is None or end.exit_code == -signal.SIGKILL:
        return _killed(work)
    return _crashed(work, where, end.exit_code)


def told(why: Why, times: int = 1) -> Failed:
    again = f" It was tried {times} times." if times > 1 else ""
    return Failed(code=why.code, message=why.message + again, hint=why.hint)


_REBOOT = Why(
    code="lost_worker",
    message="The machine was started anew while the run trained.",
    hint="Try again: it goes on from its newest checkpoint.",
    is_chance=True,
)
_HUNG = Why(
    code="hang",
    message="The training process said nothing for too long, and was ended.",
    hint="The end of its log shows where it stood. Try again from its newest checkpoint.",
    is_chance=True,
    tries=2,
)


def _memory(work: str) -> Why:
    return Why(
        code="out_of_memory",
        message=f"The system ended the {work} process because this machine ran out of memory.",
        hint="Lower the batch size, shorten the longest example, or choose a smaller model.",
    )


def _killed(work: str) -> Why:
    return Why(
        code="killed",
        message=f"The {work} process was killed from outside.",
        hint="If nobody did so, the machine may have run out of memory: lower the batch size.",
        is_chance=True,
    )


def _crashed(work: str, where: str, exit_code: int) -> Why:
    if exit_code < 0:
        name = _name(-exit_code)
        message = f"A crash in compiled code ended the {work} process{where} ({name})."
    else:
        message = f"The {work} process ended{where} without saying why (exit code {exit_code})."
    return Why(code="crashed", message=message, hint="The last lines of its log may say more.")


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
