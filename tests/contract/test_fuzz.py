"""Anything that is sent to the API is answered as its document says; `tests/fuzz.py` sends it."""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests import fuzz

EXAMPLES = 2
"""Of each kind, right and wrong, for each call. `python -m tests.fuzz --minutes 10` sends more."""


@pytest.mark.slow
def test_every_answer_is_one_that_the_document_tells_of(tmp_path: Path) -> None:
    amiss: dict[str, str] = {}
    with fuzz.studio(tmp_path / "home") as app:
        for operation in fuzz.operations(app):
            amiss |= fuzz.send(app, operation, EXAMPLES)

    assert amiss == {}


def test_an_answer_that_the_document_does_not_tell_of_is_found() -> None:
    bare = FastAPI()

    @bare.get("/one")
    def one(number: int) -> Any:  # noqa: ANN401 -- whatever: it is wrong
        return object if number else {}

    app = fuzz.calm(bare)
    (operation,) = fuzz.operations(app)

    assert {cause.partition(": ")[2] for cause in fuzz.send(app, operation, 20)} >= {"Bug"}
