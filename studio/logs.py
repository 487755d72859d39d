"""One way to log for every process: a readable line on a terminal, JSON elsewhere."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from studio.redaction import redacted, redacted_in

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


def configure(process: str) -> None:
    """Send everything this process logs to the error stream, without the secrets it knows."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Readable() if sys.stderr.isatty() else _Json(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


@contextmanager
def told(**facts: object) -> Iterator[None]:
    """Add facts to every line that is logged inside, whatever module logs it."""
    token = _told.set(_told.get() | facts)
    try:
        yield
    finally:
        _told.reset(token)


_told: ContextVar[dict[str, object]] = ContextVar("told", default={})  # noqa: B039 -- never changed in place


def _fields(record: logging.LogRecord) -> dict[str, object]:
    own = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    return _told.get() | own


def _plain(value: object) -> str:
    """Write a value so that it cannot pass for another line, or colour the terminal."""
    text = str(value)
    return text if text.isprintable() else ascii(text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Write where it failed, without what a person had put in: pydantic quotes it."""
    assert record.exc_info  # noqa: S101 -- asked by the caller
    return _QUOTED.sub("input_value=…", formatter.formatException(record.exc_info))


_QUOTED = re.compile(r"input_value=.*?(?=, input_type=)", re.DOTALL)


class _Readable(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        facts = " ".join(f"{name}={_plain(value)}" for name, value in _fields(record).items())
        line = f"{at} {record.levelname.lower():7} {record.getMessage()} {facts}".rstrip()
        return redacted(f"{line}\n{_traceback(self, record)}" if record.exc_info else line)


class _Json(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "process": self.process,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            told["traceback"] = _traceback(self, record)
        return json.dumps(redacted_in(told | _fields(record)))
