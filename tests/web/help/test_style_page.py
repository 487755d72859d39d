"""The style page: for those who build the studio, and made of what pages are made of."""

import re

from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio import resources
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.page_reader import parse_page


def test_style_page_is_hidden_outside_development(client: TestClient) -> None:
    assert client.get("/style").status_code == 404


def test_style_page_shows_every_colour_in_both_themes(engine: Engine, settings: Settings) -> None:
    building = settings.model_copy(update={"development": True})
    page = parse_page(TestClient(create_app(engine, building)).get("/style").text)

    sheet = (resources.static_dir() / "css" / "tokens.css").read_text(encoding="utf-8")
    colours = re.findall(r"--([\w-]+): light-dark", sheet)
    shown = [
        [code.text for code in theme.all("code")]
        for theme in page.all("div", class_="palette-sheet")
    ]
    assert shown == [colours, colours]
