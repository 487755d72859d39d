"""Every page in Chinese: sentences are joined as Chinese is written."""

import re
from html.parser import HTMLParser

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Study
from studio.services.runs import attempts
from studio.settings import Settings
from tests.support.factories import make_finished_run, make_running
from tests.support.pages import FAILED, PAGES, furnish

WIDE_STOP = "[\u3002\uff0c\uff1a\uff01\uff1f\uff1b]"
ODD_JOINS = re.compile(rf"\S*{WIDE_STOP} +\S+|\S*[\u201d\u4e00-\u9fff] *[,.:;!?](?= |$)")
"""A space after wide punctuation, and narrow punctuation after a Chinese character."""
INLINE = {"a", "abbr", "b", "code", "em", "small", "span", "strong", "time"}


class _Lines(HTMLParser):
    """Reads the lines of a page, whatever is bold or a link in them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = [""]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002 -- named by HTMLParser
        if tag not in INLINE:
            self.lines.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in INLINE:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        self.lines[-1] += re.sub(r"\s+", " ", data)


def odd_joins(html: str) -> list[str]:
    reader = _Lines()
    reader.feed(html)
    return [found for line in reader.lines for found in ODD_JOINS.findall(line.strip())]


@pytest.fixture
def chinese(client: TestClient, engine: Engine, settings: Settings) -> TestClient:
    """Return a Chinese browser of a studio that has something to show on each page."""
    with unit_of_work(engine) as db:
        for precision in ("bf16", "fp32"):
            make_finished_run(db, precision=precision)
        attempts.fail(db, make_running(db), FAILED)
        db.add(Study(experiment_id=1, name="x", modes=["fp32", "bf16"], seeds=[1]))
        furnish(db, settings.home)
    client.headers["Accept-Language"] = "zh"
    return client


def test_sentences_are_joined_without_spaces(chinese: TestClient) -> None:
    found = {path: odd_joins(chinese.get(path).text) for path in PAGES}

    assert {path: joins for path, joins in found.items() if joins} == {}


def test_spaces_within_data_stay(chinese: TestClient, engine: Engine) -> None:
    text = "\u597d\u3002 \u518d\u89c1\u3002"
    with unit_of_work(engine) as db:
        run = make_running(db)
        run.notes, number = text, run.id

    assert text in chinese.get(f"/runs/{number}/words").text
