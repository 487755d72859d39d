"""The desk on rows that are packed: who shares an example with whom, and how much is shown."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from studio.protocols import tokenizer_service as line
from studio.protocols.tokenizer_service import (
    PACKING_WINDOW_ROWS,
    PackedExample,
    PackingWindow,
    TokenizerRequest,
    TokenPreview,
    packing_window,
)
from studio.services.models import service_clients
from studio.settings import Settings
from tests.support import tokenizer_services

TEXTS = ("one two", "three", "four five six", "a")
LIMIT = 24


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("desk"))


@pytest.fixture(scope="module", autouse=True)
def desked(home: Settings) -> Iterator[None]:
    with tokenizer_services.run_tokenizer_service(home):
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_services.write_model(tmp_path_factory.mktemp("desk") / "model", template="")


def asked(model: Path, path: Path, number: int, limit: int = LIMIT) -> TokenizerRequest:
    """Ask of a text; a token is a letter, and one more ends it."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    first = packing_window(number).start - 1
    return TokenizerRequest(
        kind="tokens",
        model=str(model),
        row=json.loads(lines[number - 1]),
        number=number,
        max_length=limit,
        window=PackingWindow(path=str(path), start=sum(map(len, lines[:first])), rows=len(lines)),
    )


def written(path: Path, *texts: str) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def pack(found: TokenPreview) -> PackedExample:
    assert found.pack is not None
    return found.pack


def test_preview_lists_all_rows_of_pack(home: Settings, model: Path, tmp_path: Path) -> None:
    found = pack(
        service_clients.tokenize_row(home, asked(model, written(tmp_path / "rows", *TEXTS), 3))
    )

    assert [(one.number, one.size) for one in found.rows] == [(1, 8), (3, 14), (4, 2)]
    assert (found.size, found.limit) == (24, LIMIT)
    shown = ["".join(token.text for token in one.tokens) for one in found.rows]
    assert shown == ["one two<|im_end|>", "", "a<|im_end|>"]


def test_preview_shows_end_of_previous_row(home: Settings, model: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "rows", "x" * 100 + "end", "behind")

    before, _ = pack(service_clients.tokenize_row(home, asked(model, path, 2, 200))).rows

    assert (before.size, len(before.tokens)) == (104, 40)
    assert "".join(token.text for token in before.tokens) == "x" * 36 + "end<|im_end|>"


def test_pack_preview_is_limited_in_tokens(home: Settings, model: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "rows", *["x" * 899] * 5)

    found = service_clients.tokenize_row(home, asked(model, path, 1, 9000))

    told = [len(found.tokens), *(len(one.tokens) for one in pack(found).rows[1:])]
    assert told == [900, 900, line.MAX_PREVIEW_TOKENS - 1800, 0, 0]


def test_unpacked_row_is_listed_alone(home: Settings, model: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "rows", "x" * 20, "y" * 20)

    assert [
        one.number for one in pack(service_clients.tokenize_row(home, asked(model, path, 2))).rows
    ] == [2]


def test_rows_of_other_windows_are_not_packed_together(
    home: Settings, model: Path, tmp_path: Path
) -> None:
    path = written(tmp_path / "rows", *["x"] * (PACKING_WINDOW_ROWS + 2))

    found = pack(service_clients.tokenize_row(home, asked(model, path, PACKING_WINDOW_ROWS + 1)))

    assert [one.number for one in found.rows] == [PACKING_WINDOW_ROWS + 1, PACKING_WINDOW_ROWS + 2]


def test_row_lengths_are_measured_once(home: Settings, model: Path, tmp_path: Path) -> None:
    path = written(tmp_path / "rows", *TEXTS)
    question = asked(model, path, 1)
    service_clients.tokenize_row(home, question)
    written(path, *(text * 2 for text in TEXTS))

    found = pack(service_clients.tokenize_row(home, question.model_copy(update={"max_length": 16})))

    assert [(one.number, one.size) for one in found.rows] == [(1, 8), (2, 6)]


def test_row_is_shown_when_its_neighbour_cannot_be_rendered(home: Settings, tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('no') }}"
    picky = tokenizer_services.write_model(
        tmp_path / "picky",
        template
        + "{% endif %}"
        + tokenizer_services.CHATML.removeprefix("{% for message in messages %}").replace(
            "message.", "m."
        ),
    )
    talks = [
        [{"role": "user", "content": word}, {"role": "assistant", "content": "."}]
        for word in ("yes", "no")
    ]
    path = tmp_path / "rows"
    path.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))

    found = service_clients.tokenize_row(home, asked(picky, path, 1, 200))

    assert (found.learnt > 0, found.pack) == (True, None)
    assert "Row 2 of the training data is rejected" in found.sentences[0]
