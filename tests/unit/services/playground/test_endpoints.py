"""Endpoints as an administrator writes them, and which of them can be asked."""

import json
from typing import Any

import pytest
from pydantic import SecretStr
from sqlmodel import Session

from studio.errors import InvalidError, NotFoundError
from studio.protocols import chat_endpoints
from studio.redaction import redact
from studio.services.accounts import secrets
from studio.services.playground import endpoints
from studio.settings import Settings

LARGE = {
    "name": "large",
    "url": "https://api.example.com/v1/",
    "model": "m-1",
    "key": "sk-12345678",
}
PLAIN = {"name": "plain", "url": "http://model.example:8000/v1", "model": "m-2"}
JUDGE = {"judge_url": "https://judge.example/v1", "judge_model": "wise"}


def test_list_of_endpoints_is_read_and_its_keys_are_redacted() -> None:
    large, plain = chat_endpoints.parse(json.dumps([LARGE, PLAIN]))

    assert (large.host, large.chat_url) == (
        "api.example.com",
        "https://api.example.com/v1/chat/completions",
    )
    assert large.headers["Authorization"] == "Bearer sk-12345678"
    assert "Authorization" not in plain.headers
    assert "sk-12345678" not in repr(large)
    assert redact("It says sk-12345678.") == "It says ***."
    assert chat_endpoints.parse(" ") == []


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("sk-87654321", "this is not valid JSON."),
        ("[" * 100_000, "this is not valid JSON."),
        (LARGE, "Must be a list"),
        ([LARGE, LARGE], "two have the same name."),
        ([{**LARGE, "name": "a b"}], "0.name: "),
        ([{**LARGE, "secret": "x"}], "0.secret: "),
        ([{"name": "large", "url": "https://x.example/v1"}], "0.model: "),
        ([{**LARGE, "url": "ftp://x.example"}], "A URL must start with http:// or https://"),
        ([{**LARGE, "url": "https://me:sk-12345678@x.example/v1"}], "must not contain a password"),
        ([{**PLAIN, "name": f"n{number}"} for number in range(51)], "at most 50"),
    ],
)
def test_wrong_list_is_explained_without_its_keys(written: Any, words: str) -> None:  # noqa: ANN401 -- any JSON
    text = written if isinstance(written, str) else json.dumps(written)
    with pytest.raises(InvalidError, match="The list of endpoints is wrong: ") as raised:
        chat_endpoints.parse(text)

    assert words in raised.value.message
    assert "sk-" not in f"{raised.value.message} {raised.value.hint}"


def test_judge_can_be_asked_too_unless_its_name_is_taken(db: Session, settings: Settings) -> None:
    def listed(**changes: Any) -> list[tuple[str, str]]:  # noqa: ANN401 -- any setting
        there = settings.model_copy(update=changes)
        return [(one.name, one.model) for one in endpoints.list_endpoints(db, there)]

    taken = json.dumps([{**PLAIN, "name": "judge"}])
    assert listed() == []
    assert listed(**JUDGE) == [("judge", "wise")]
    assert listed(judge_url="https://judge.example/v1") == []
    assert listed(**JUDGE, endpoints=SecretStr(json.dumps([LARGE]))) == [
        ("large", "m-1"),
        ("judge", "wise"),
    ]
    assert listed(**JUDGE, endpoints=SecretStr(taken)) == [("judge", "m-2")]


def test_stored_list_and_key_are_used(db: Session, settings: Settings) -> None:
    secrets.store(db, settings, "endpoints", json.dumps([LARGE]), "me")
    secrets.store(db, settings, "judge_key", "sk-judgejudge", "me")
    db.flush()
    there = settings.model_copy(update=JUDGE)

    assert endpoints.get(db, there, "judge").key.get_secret_value() == "sk-judgejudge"
    assert endpoints.get(db, there, "large").key.get_secret_value() == "sk-12345678"
    with pytest.raises(NotFoundError, match="no endpoint named small"):
        endpoints.get(db, there, "small")
    with pytest.raises(InvalidError, match="The list of endpoints is wrong"):
        secrets.store(db, settings, "endpoints", "[", "me")
