"""The page of number formats shows what each format stores, from an address alone."""

import pytest
from fastapi.testclient import TestClient

from studio.recipe.precision import FLOAT_FORMATS
from tests.support.page_reader import Node, parse_page

AS_PART = {"HX-Request": "true", "HX-Request-Type": "partial"}


def card(client: TestClient, name: str, **query: str) -> Node:
    page = parse_page(client.get("/numbers", params=query).text)
    return page.one(id=f"format-{name}")


def bits(node: Node) -> str:
    return "".join(bit.text for bit in node.all("button"))


def test_page_shows_bits_of_every_format(client: TestClient) -> None:
    page = parse_page(client.get("/numbers?x=0.1").text)

    rows = {name: bits(page.one(id=f"format-{name}")) for name in FLOAT_FORMATS}
    assert rows["float32"] == "00111101110011001100110011001101"
    assert rows["bfloat16"] == "0011110111001101"
    assert {name: len(row) for name, row in rows.items()} == {
        name: form.bits for name, form in FLOAT_FORMATS.items()
    }


@pytest.mark.parametrize(
    ("name", "x", "sentence"),
    [
        ("float16", "70000", "Overflow: becomes infinite"),
        ("float16", "1e-9", "Underflow: becomes 0"),
        ("float16", "1e-7", "Subnormal: 2 significant bits left"),
        ("float8_e4m3fn", "70000", "Overflow: cut to 448"),
        ("bfloat16", "0.5", "Stored exactly"),
        ("bfloat16", "nan", "Not a number"),
    ],
)
def test_page_says_what_happened(client: TestClient, name: str, x: str, sentence: str) -> None:
    assert sentence in card(client, name, x=x).text


def test_pressed_bit_makes_number(client: TestClient) -> None:
    shown = card(client, "bfloat16", x="0.1", bits="bfloat16:bdcd")

    assert bits(shown) == "1011110111001101"
    page = parse_page(client.get("/numbers?x=0.1&bits=bfloat16:bdcd").text)
    assert page.one("input", id="x").attributes["value"] == "-0.10009765625"


def test_pressed_bit_of_nan_keeps_other_bits(client: TestClient) -> None:
    assert bits(card(client, "float16", bits="float16:7e01")) == "0111111000000001"


def test_part_replaces_typed_number_only_after_press(client: TestClient) -> None:
    typed = client.get("/numbers?x=2", headers=AS_PART).text
    pressed = client.get("/numbers?x=2&bits=float16:3c00", headers=AS_PART).text

    assert "<hx-partial" not in typed
    assert '<hx-partial hx-target="#x"' in pressed
    assert "<html" not in pressed


def test_text_that_is_no_number_is_reported(client: TestClient) -> None:
    page = parse_page(client.get("/numbers", params={"x": "<b>0.1"}).text)

    assert "This is not a number." in page.one(id="x-error").text
    assert page.one("input", id="x").attributes["value"] == "<b>0.1"


def test_lost_updates_are_counted(client: TestClient) -> None:
    page = client.get("/numbers", params={"weight": "1", "update": "0.0001"}).text
    refused = client.get("/numbers", params={"weight": "inf", "update": "1"}).text

    assert "5 of 6 formats lose every update." in page
    assert "Weight and update must be numbers up to 1e30." in refused
