"""Help: each setting has a page drawn from its declaration, and all of it can be searched."""

import pytest
from fastapi.testclient import TestClient

from studio.failure_codes import FAILURE_CODES
from studio.methods import METHODS
from studio.recipe.precision import PRECISIONS
from studio.web.help import help_page
from tests.support.page_reader import Node, parse_page


def facts(page: Node) -> dict[str, str]:
    (pairs,) = page.all("dl", class_="facts")
    names, values = pairs.all("dt"), pairs.all("dd")
    return {name.text: value.text for name, value in zip(names, values, strict=True)}


@pytest.mark.parametrize("name", help_page.recipe_fields())
def test_every_setting_has_page(client: TestClient, name: str) -> None:
    page = parse_page(client.get(f"/help/knobs/{name}").text)
    entry = help_page.recipe_fields()[name]

    assert page.one("h1").text == entry.knob.label
    # What stands in backticks is an element of its own, which the reader parts by spaces.
    said = page.one("p", class_="lead").text
    assert "".join(said.split()) == "".join(entry.help.replace("`", "").split())


def test_setting_page_shows_type_default_and_target(client: TestClient) -> None:
    page = parse_page(client.get("/help/knobs/optimisation.learning_rate").text)

    assert facts(page) == {
        "Name": "optimisation.learning_rate",
        "Default": "0.0002",
        "Accepts": "a number, more than 0 and at most 1",
        "Maps to": "trl.SFTConfig.learning_rate",
    }


def test_setting_page_shows_how_to_set_it(client: TestClient) -> None:
    page = parse_page(client.get("/help/knobs/optimisation.learning_rate").text)

    assert [code.text for code in page.all("pre")] == [
        "optimisation: learning_rate: 0.0002",
        "studio train recipe.yaml --set optimisation.learning_rate=0.0002",
        '{"recipe": {"optimisation": {"learning_rate": 0.0002}}}',
    ]


def test_every_related_setting_exists() -> None:
    known = help_page.recipe_fields()

    assert [one for entry in known.values() for one in entry.knob.related if one not in known] == []


def test_defaults_are_listed_with_their_unit(client: TestClient) -> None:
    rows = {
        row.one("th").text: row.all("td")[-1].text
        for row in parse_page(client.get("/help").text).all("tr")
        if row.all("td")
    }

    assert (rows["Log every"], rows["Gradient accumulation"]) == ("1 step", "1 step")
    assert (rows["Max sequence length"], rows["Warm-up"]) == (
        "1,024 tokens",
        "0.03",
    )


def test_unknown_setting_returns_404(client: TestClient) -> None:
    assert client.get("/help/knobs/optimisation.luck").status_code == 404


def test_help_can_be_searched(client: TestClient) -> None:
    found = parse_page(client.get("/help?q=warm-up share").text).one(id="found")

    assert [link.text for link in found.all("a")] == ["Warm-up"]


def test_help_without_query_lists_everything(client: TestClient) -> None:
    found = parse_page(client.get("/help").text).one(id="found")

    links = [link.attributes["href"] for link in found.all("a")]
    assert len(links) == len(help_page.recipe_fields()) + len(FAILURE_CODES) + 1
    assert help_page.search_help("").count == len(help_page.recipe_fields()) + len(
        FAILURE_CODES
    ) + len(PRECISIONS)


def test_the_forms_lead_to_the_page_of_each_setting(client: TestClient) -> None:
    pages = [parse_page(client.get(f"/new?method={name}").text) for name in METHODS]

    hrefs = {link.attributes.get("href", "") for page in pages for link in page.all("a")}
    linked = {href.removeprefix("/help/knobs/") for href in hrefs if "/help/knobs/" in href}
    assert linked == help_page.recipe_fields().keys()
