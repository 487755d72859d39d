"""The documentation as a site, and that the code of each how-to is tried here."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from tests.guides.reader import HOW_TO, blocks
from tests.support.live_studio import ROOT

HERE = Path(__file__).parent
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src"}
"""Elements that make a browser load what an attribute names."""


@pytest.mark.smoke
def test_code_of_each_how_to_is_tried() -> None:
    with_code = {path.stem for path in HOW_TO.glob("*.md") if blocks(path.stem)}
    texts = (path.read_text("utf-8") for path in HERE.glob("test_*.py"))

    assert {
        name for text in texts for name in re.findall(r'blocks\("([\w-]+)"\)', text)
    } == with_code


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site; a link or an anchor that leads nowhere fails here."""
    folder = tmp_path_factory.mktemp("docs") / "site"
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


class Loads(HTMLParser):
    """The addresses that a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if known.get("rel") not in {"canonical", "next", "prev"}:
            self.found.append(known.get(LOADED.get(tag, "")) or "")


@pytest.mark.slow
def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(list(HOW_TO.glob("*.md")))
    for page in pages:
        loads = Loads()
        loads.feed(page.read_text("utf-8"))
        assert [one for one in loads.found if re.match(r"(\w+:)?//", one)] == [], page


@pytest.mark.slow
def test_search_finds_pages_by_what_they_say(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text("utf-8"))
    texts = {entry["location"]: f"{entry['title']} {entry['text']}" for entry in index["docs"]}

    assert "llama-quantize" in texts["how-to/export-to-gguf/"]
    assert any("weight_decay" in text for name, text in texts.items() if "knobs" in name)


@pytest.mark.smoke
def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text("utf-8")

    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert set(re.findall(r"[\w/-]+\.md", menu)) == pages
    assert yaml.safe_load(menu)["strict"] is True
