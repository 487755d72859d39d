"""Logging for every process: readable lines on a terminal, JSON elsewhere."""

import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

from studio.redaction import redact, redact_value

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "color_message",
}


def configure(process: str) -> None:
    """Send all logs of this process to stderr, with known secrets redacted."""
    handler = logging.StreamHandler()
    handler.setFormatter(_TerminalFormatter() if sys.stderr.isatty() else _JsonFormatter(process))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("alembic").setLevel(logging.WARNING)


@contextmanager
def log_context(**facts: object) -> Iterator[None]:
    """Add fields to every line that any module logs inside the context."""
    token = _context.set(_context.get() | facts)
    try:
        yield
    finally:
        _context.reset(token)


_context: ContextVar[dict[str, object]] = ContextVar("log_context", default={})  # noqa: B039 -- never changed in place


def _extra_fields(record: logging.LogRecord) -> dict[str, object]:
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}
    return _context.get() | fields


def _escape_control_characters(value: object) -> str:
    """Escape a value so that it cannot forge another log line or control the terminal."""
    text = str(value)
    return text if text.isprintable() else ascii(text)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Format the traceback without the user input that pydantic quotes in its errors."""
    assert record.exc_info  # noqa: S101 -- checked by the caller
    return _QUOTED_INPUT.sub("input_value=…", formatter.formatException(record.exc_info))


_QUOTED_INPUT = re.compile(r"input_value=.*?(?=, input_type=)", re.DOTALL)


class _TerminalFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        timestamp = datetime.fromtimestamp(record.created, UTC).astimezone().strftime("%H:%M:%S")
        facts = " ".join(
            f"{name}={_escape_control_characters(value)}"
            for name, value in _extra_fields(record).items()
        )
        line = f"{timestamp} {record.levelname.lower():7} {record.getMessage()} {facts}".rstrip()
        return redact(f"{line}\n{_traceback(self, record)}" if record.exc_info else line)


class _JsonFormatter(logging.Formatter):
    def __init__(self, process: str) -> None:
        super().__init__()
        self.process = process

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "process": self.process,
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        if record.exc_info:
            entry["traceback"] = _traceback(self, record)
        return json.dumps(redact_value(entry | _extra_fields(record)))
