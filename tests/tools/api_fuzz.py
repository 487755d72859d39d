"""Whatever is sent to the API is answered as its document says: schemathesis sends it.

`python -m tests.tools.api_fuzz --minutes 10` sends for ten minutes; `tests/contract/test_fuzz.py`
sends a few of each. What is found is told once for each call and cause, with what it takes to send
it again.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.errors import Unsatisfiable
from hypothesis.strategies import SearchStrategy
from schemathesis import CheckContext, GenerationMode, Response
from schemathesis.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.python import asgi
from starlette.types import ASGIApp, Receive, Scope, Send

from studio.db.session import unit_of_work
from studio.services.operations import home
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.factories import add_starter_data, make_finished_run, make_run


def no_bug(_context: CheckContext, response: Response, case: Any) -> None:  # noqa: ANN401 -- schemathesis names no public type
    """503 says that something does not exist; only 500 says that we are wrong."""
    if response.status_code == HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Failure(operation=case.operation.label, title="Bug", message=response.text[:500])


CHECKS = [
    no_bug,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
schemathesis.serializer.alias("application/offset+octet-stream", "application/octet-stream")

NOWHERE = "http://127.0.0.1:9"
"""Where nobody listens: nothing is fetched from outside."""

ENDLESS = r"stream$"
"""What tells of news for as long as somebody listens.

`tests/web/http/test_event_hub.py` listens.
"""

QUICK = settings(
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)


@contextmanager
def studio(folder: Path) -> Iterator[Any]:
    """Open a studio with a little of everything, on a database of its own."""
    kept = Settings(home=folder, allowed_hosts=asgi.HOST, hub_endpoint=NOWHERE, slots=1)
    engine = home.open_home(kept)
    with unit_of_work(engine) as db:
        add_starter_data(db, kept)
        make_finished_run(db)
        make_run(db)
    yield without_crashes(create_app(engine, kept))
    engine.dispose()


def without_crashes(app: ASGIApp) -> ASGIApp:
    """Let errors out only as answers: what is raised has been answered with 500 before."""

    async def quiet(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(Exception):
            await app(scope, receive, send)

    return quiet


def operations(app: Any) -> list[Any]:  # noqa: ANN401 -- schemathesis names no public type
    """Return the calls, those that delete last."""
    schema = schemathesis.openapi.from_asgi("/openapi.json", app).exclude(path_regex=ENDLESS)
    made: list[Any] = list(schema.get_all_operations())
    return sorted((one.ok() for one in made), key=lambda one: one.method == "delete")


def send(app: Any, operation: Any, examples: int, start: int = 0) -> dict[str, str]:  # noqa: ANN401 -- schemathesis names no public type
    """Send so many requests of each kind to a call. Return what is amiss, by its cause."""
    amiss: dict[str, str] = {}

    def ask(case: Any) -> None:  # noqa: ANN401 -- schemathesis names no public type
        try:
            case.call_and_validate(session=client, checks=CHECKS)
        except FailureGroup as group:
            for failure in group.exceptions:
                amiss.setdefault(f"{operation.label}: {failure.title}", str(group)[:1500])

    with asgi.get_client(app) as client:
        for number, strategy in enumerate(_kinds(operation)):
            sent = settings(QUICK, max_examples=examples)(given(strategy)(ask))
            with suppress(Unsatisfiable):  # a call that takes nothing takes nothing wrong
                seed(start + number)(sent)()
    return amiss


def _kinds(operation: Any) -> Iterator[SearchStrategy[Any]]:  # noqa: ANN401 -- schemathesis names no public type
    """Yield what fits a call and what does not, of anything and of what there is."""
    there = {
        one.name: 1
        for one in operation.path_parameters
        if one.definition.get("schema", {}).get("type") == "integer"
    }
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        yield operation.as_strategy(mode)
        if there:
            yield operation.as_strategy(mode, path_parameters=there)


def main() -> int:
    """Send for so many minutes, each turn to a studio of its own. Return 1 if anything is amiss."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--minutes", type=float, default=1.0)
    arguments.add_argument("--examples", type=int, default=20)
    asked = arguments.parse_args()
    end, amiss = time.monotonic() + asked.minutes * 60, set[str]()
    for turn in count():
        with TemporaryDirectory() as folder, studio(Path(folder)) as app:
            for operation in operations(app):
                if time.monotonic() > end:
                    sys.stdout.write(f"{turn} whole turns, {len(amiss)} things amiss\n")
                    return 1 if amiss else 0
                found = send(app, operation, asked.examples, turn * 10)
                for cause in found.keys() - amiss:
                    sys.stdout.write(f"\n## {cause}\n{found[cause]}\n")
                sys.stdout.flush()
                amiss |= found.keys()
    raise AssertionError


if __name__ == "__main__":
    sys.exit(main())
