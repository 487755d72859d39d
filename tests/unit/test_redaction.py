"""What is secret, kept out of logs and of what is shown."""

import io
import json
import logging
from pathlib import Path

import pytest

from studio import logs, redaction
from studio.redaction import RedactingStream, redact, redact_value
from studio.services.runs import artifacts


@pytest.fixture
def secret() -> str:
    redaction.register_secrets(['a "very" secret/value'])
    return 'a "very" secret/value'


@pytest.mark.parametrize(
    "spelt",
    ['a "very" secret/value', r"a \"very\" secret/value", "a%20%22very%22%20secret%2Fvalue"],
)
def test_secret_is_redacted_in_every_encoding(secret: str, spelt: str) -> None:
    assert secret
    assert redact(f"it was {spelt}.") == "it was ***."


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("with hf_abcdefghijklmnopqrstuv", "with ***"),
        ("smtp://ann:hush@mail.example.org", "smtp://***@mail.example.org"),
        ("sft_12_abcdefghijklmnopqrstuvwxyz", "***"),
        ("self_attention of hf_model", "self_attention of hf_model"),
        ("http://127.0.0.1:8000/runs", "http://127.0.0.1:8000/runs"),
    ],
)
def test_secret_patterns_are_redacted(told: str, expected: str) -> None:
    assert redact(told) == expected


def test_password_in_url_is_redacted_separately() -> None:
    redaction.register_secrets(["smtp://studio:hush%20hush%20now@mail.example.org"])

    assert redact("refused: hush hush now") == "refused: ***"


def test_numbers_are_not_redacted() -> None:
    redaction.register_secrets(["86420975"])

    assert redact_value({"loss": 0.86420975, "said": ["86420975"]}) == {
        "loss": 0.86420975,
        "said": ["***"],
    }


@pytest.mark.parametrize("kind", [logs._JsonFormatter("web"), logs._TerminalFormatter()])
def test_secret_is_redacted_in_log_records(secret: str, kind: logging.Formatter) -> None:
    record = logging.makeLogRecord(
        {"name": "x", "levelname": "INFO", "msg": f"got {secret}", "told": {"token": secret}}
    )
    record.exc_info = (ValueError, ValueError(secret), None)

    line = kind.format(record)

    assert secret not in line
    assert json.dumps(secret)[1:-1] not in line
    assert line.count("***") == 3


def test_secret_is_redacted_in_displayed_log(secret: str, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text(f"asked with {secret}\n")

    assert artifacts.read_log(log, None, 10).lines == ["asked with ***"]


def test_secret_is_redacted_in_process_output(secret: str) -> None:
    inner = io.StringIO()

    print(f"token={secret}", file=RedactingStream(inner), flush=True)

    assert inner.getvalue() == "token=***\n"
