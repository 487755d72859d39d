"""What will be trained, seen before it is, as a person meets it."""

from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, expect
from safetensors.numpy import save_file

from tests.support import tokenizer_services

pytestmark = pytest.mark.e2e

WEIGHTS = "model.safetensors"


def test_token_preview_follows_form(page: Page) -> None:
    page.goto("/new?preset=full#settings")
    expect(page.locator("#sight mark").first).to_be_visible()
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#look-row")).to_have_value("2")
    expect(page.get_by_role("button", name="Next")).to_be_focused()
    page.get_by_label("Max sequence length").fill("16")
    page.get_by_label("Max sequence length").blur()

    expect(page.locator("#sight .cut-mark")).to_have_text("truncated at 16")
    expect(page.locator("#sight .caution")).to_contain_text("tokens are truncated")


def test_token_preview_shows_rows_packed_together(page: Page) -> None:
    page.goto("/new?preset=full#settings")
    expect(page.locator("#sight mark").first).to_be_visible()
    page.get_by_label("Sequence packing").check()

    expect(page.locator("#sight .packed")).to_contain_text("Packed with rows")
    expect(page.locator("#sight .pack-mark").first).to_be_visible()
    expect(page.locator("#sight .tokens-beside .tok").first).to_be_visible()


def test_base_model_gets_chosen_chat_template(page: Page, tmp_path: Path) -> None:
    base = tokenizer_services.write_model(tmp_path / "base", template="")
    save_file({"model.embed_tokens.weight": np.zeros((258, 64), np.float32)}, base / WEIGHTS)
    page.goto("/new?preset=full#settings")
    page.get_by_label("Base model").fill(str(base))
    page.get_by_label("Base model").blur()
    expect(page.locator("#sight")).to_contain_text("This model has no chat template")
    page.locator("#start").click()
    expect(page.locator("#problems")).to_contain_text("has no chat template")
    page.get_by_role("button", name="Use Plain text").click()

    expect(page.locator("#sight .tokens")).to_contain_text("Assistant:")
    expect(page.get_by_label("Chat template")).to_have_value("plain")


def test_token_ids_show_on_hover_and_with_switch(page: Page) -> None:
    page.goto("/datasets/1/sight")
    first = page.locator("#sight .tokens .tok").first
    first.hover()
    assert id_of(first) == f'"{first.get_attribute("data-id")}"'
    page.get_by_label("Show token IDs").check()
    page.get_by_role("button", name="Random").click()

    token = page.locator("#sight .tokens .tok").first
    expect(token).to_be_visible()
    assert id_of(token) == f'"{token.get_attribute("data-id")}"'


def id_of(token: Locator) -> str:
    """Return what is drawn behind a token."""
    shown: str = token.evaluate("token => getComputedStyle(token, '::after').content")
    return shown
