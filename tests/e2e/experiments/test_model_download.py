"""A base model as a person gets one: looked for, downloaded while one watches, trained on."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.fakes.hub_server import HubServer, Repo
from tests.support.live_studio import Studio, get_run

pytestmark = pytest.mark.e2e

NAME = "mantissa/small"


@pytest.fixture
def repo(hub: HubServer, starter_model: Path, monkeypatch: pytest.MonkeyPatch) -> Repo:
    """Put the starter model on a hub, which the studio that starts later is told of."""
    monkeypatch.setenv("STUDIO_HUB_ENDPOINT", hub.url)
    files = {path.name: path.read_bytes() for path in starter_model.iterdir()}
    return hub.model(
        NAME, files | {"pytorch_model.bin": b"never"}, tags=["license:mit", "text-generation"]
    )


@pytest.fixture
def studio(repo: Repo, make_studio: Callable[[], Studio]) -> Studio:  # noqa: ARG001 -- the hub is there before
    """Make a studio that knows the hub."""
    return make_studio()


def test_model_is_searched_downloaded_and_trained(
    page: Page, hub: HubServer, repo: Repo, studio: Studio
) -> None:
    hub.held.clear()
    hub.held_after = 100_000
    page.goto("/models")
    page.get_by_label("Full or partial name").press_sequentially("mantissa")
    page.get_by_role("button", name=f"Download {NAME}").click()
    expect(page.get_by_role("status").filter(has_text="Downloaded 0.")).to_be_visible()
    hub.held.set()
    page.get_by_role("link", name=NAME, exact=True).click()
    expect(page.get_by_role("heading", name=NAME, level=1)).to_be_visible()
    expect(page.get_by_text(repo.commit("main"))).to_be_visible()

    page.get_by_role("link", name="New experiment with this model").click()
    expect(page.get_by_label("Base model")).to_have_value(NAME)
    page.get_by_role("link", name="Edit all settings").click()
    page.get_by_label("Max steps").fill("3")
    page.locator("#start").click()
    page.wait_for_url("**/runs/1")
    expect(page.locator("#head")).to_contain_text("succeeded", timeout=180_000)

    assert get_run(studio, 1)["recipe"]["base_model"] == NAME
    manifest = studio.api.get("/runs/1/manifest").json()
    assert manifest["base_model"]["revision"] == repo.commit("main")
    assert hub.fetched("pytorch_model.bin") == []
