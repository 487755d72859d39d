"""Anything that is sent to the API is answered as its document says.

`tests/tools/api_fuzz.py` sends it.
"""

from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from tests.tools import api_fuzz

EXAMPLES = 2
"""Of each kind, right and wrong, for each call.

`python -m tests.tools.api_fuzz --minutes 10` sends more.
"""


@pytest.mark.slow
def test_every_response_matches_openapi_document(tmp_path: Path) -> None:
    amiss: dict[str, str] = {}
    with api_fuzz.studio(tmp_path / "home") as app:
        for operation in api_fuzz.operations(app):
            amiss |= api_fuzz.send(app, operation, EXAMPLES)

    assert amiss == {}


def test_fuzzer_reports_server_errors() -> None:
    bare = FastAPI()

    @bare.get("/one")
    def one(number: int) -> Any:  # noqa: ANN401 -- whatever: it is wrong
        return object if number else {}

    app = api_fuzz.without_crashes(bare)
    (operation,) = api_fuzz.operations(app)

    assert {cause.partition(": ")[2] for cause in api_fuzz.send(app, operation, 20)} >= {"Bug"}
