"""Images of every common format end up beside the rows, at their places in the turns."""

import base64
import hashlib
import io
import json
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.intake.mapping import Mapping
from tests.support.sample_images import data_url, image
from tests.unit.intake.conftest import Convert, Result, zipped

RED, BLUE = image("red"), image("blue")
ANSWER = {"role": "assistant", "content": "A square."}


def as_lines(*rows: dict[str, Any]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def stored(content: bytes, at: int = 0, size: tuple[int, int] = (8, 6)) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"sha256": digest, "at": at, "width": size[0], "height": size[1]}


def first_turn(result: Result) -> Any:  # noqa: ANN401 -- a turn
    return result.rows[0]["messages"][0]


def user(content: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- as people write content
    return [{"role": "user", "content": content}, ANSWER]


PARTS = {
    "OpenAI": {"type": "image_url", "image_url": {"url": data_url(RED)}},
    "OpenAI, just a URL": {"type": "image_url", "image_url": data_url(RED)},
    "OpenAI responses": {"type": "input_image", "image_url": data_url(RED)},
    "Anthropic": {
        "type": "image",
        "source": {
            "type": "base64",
            "media_type": "image/png",
            "data": base64.b64encode(RED).decode(),
        },
    },
    "a path": {"type": "image", "image": "images/red.png"},
    "a path, Windows": {"type": "image", "path": "images\\red.png"},
    "Qwen": {"image": "images/red.png"},
    "Parquet's nulls": {"type": "image", "text": None, "image": "./images/red.png"},
}


@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS.keys())
def test_part_of_a_turn_is_an_image_before_the_text_that_follows(
    bring: Convert, part: dict[str, Any]
) -> None:
    content = [{"type": "text", "text": "See: "}, part, {"type": "text", "text": "What?"}]
    rows = as_lines({"messages": user(content)})

    result = bring(zipped({"rows.jsonl": rows, "images/red.png": RED}), "rows.zip")

    assert result.converted.kind == "images"
    assert first_turn(result) == {
        "role": "user",
        "content": "See: What?",
        "images": [stored(RED, at=5)],
    }


def test_images_of_a_column_fill_the_parts_that_name_none(bring: Convert) -> None:
    content = [
        {"type": "image"},
        {"type": "text", "text": "or"},
        {"type": "image"},
        {"type": "text", "text": "?"},
    ]
    rows = as_lines({"messages": user(content), "images": ["a/red.png", "blue.png"]})

    result = bring(zipped({"rows.jsonl": rows, "a/red.png": RED, "blue.png": BLUE}), "rows.zip")

    assert first_turn(result)["content"] == "or?"
    assert first_turn(result)["images"] == [stored(RED), stored(BLUE, at=2)]


@pytest.mark.parametrize(
    ("text", "content", "at"),
    [
        ("<image>\nWhat is it?", "What is it?", 0),
        ("What is it?\n<image>", "What is it?", 11),
        ("Look <image> here", "Look  here", 5),
        ("<image>", "", 0),
    ],
)
def test_llava_marker_is_cut_from_the_text(
    bring: Convert, text: str, content: str, at: int
) -> None:
    row = {
        "id": "1",
        "image": "red.png",
        "conversations": [{"from": "human", "value": text}, {"from": "gpt", "value": "Red."}],
    }
    archive = zipped({"data/rows.json": json.dumps([row]).encode(), "data/red.png": RED})

    result = bring(archive, "llava.zip")

    assert first_turn(result) == {"role": "user", "content": content, "images": [stored(RED, at)]}


def test_alpaca_with_markers_and_several_images(bring: Convert) -> None:
    row = {
        "instruction": "<image><image>Compare.",
        "input": "",
        "output": "Same size.",
        "images": ["red.png", "blue.png"],
    }

    result = bring(
        zipped({"rows.json": json.dumps([row]).encode(), "red.png": RED, "blue.png": BLUE}),
        "rows.zip",
    )

    assert first_turn(result)["images"] == [stored(RED), stored(BLUE)]
    assert first_turn(result)["content"] == "Compare."


def test_table_of_paths_questions_and_answers(bring: Convert) -> None:
    table = b"image,question,answer\nred.png,What colour?,Red\nblue.png,What colour?,Blue\n"

    result = bring(zipped({"vqa.csv": table, "red.png": RED, "blue.png": BLUE}), "vqa.zip")

    assert [row["messages"][0]["images"] for row in result.rows] == [[stored(RED)], [stored(BLUE)]]
    assert result.converted.mapping.roles == {
        "prompt": ["question"],
        "completion": ["answer"],
        "images": ["image"],
    }


@pytest.mark.parametrize("column", ["caption", "text", "label"])
def test_caption_is_the_answer_to_an_image_alone(bring: Convert, column: str) -> None:
    rows = as_lines(
        {"file_name": "red.png", column: "red"}, {"file_name": "blue.png", column: "blue"}
    )

    result = bring(zipped({"metadata.jsonl": rows, "red.png": RED, "blue.png": BLUE}), "photos.zip")

    assert result.rows[0]["messages"] == [
        {"role": "user", "content": "", "images": [stored(RED)]},
        {"role": "assistant", "content": "red"},
    ]


@pytest.mark.parametrize("several", [False, True])
def test_parquet_with_image_features(bring: Convert, several: bool) -> None:  # noqa: FBT001 -- a case
    one = {"bytes": RED, "path": "red.png"}
    images: Any = [[one, {"bytes": BLUE, "path": None}]] if several else [one]
    out = io.BytesIO()
    name = "images" if several else "image"
    table = pa.table({name: images, "question": ["What colour?"], "answer": ["Red"]})
    parquet.write_table(table, out)

    result = bring(out.getvalue(), "rows.parquet")

    expected = [stored(RED), stored(BLUE)] if several else [stored(RED)]
    assert first_turn(result)["images"] == expected


def test_rows_without_images_stay_among_the_others(bring: Convert) -> None:
    content = [{"type": "image_url", "image_url": {"url": data_url(RED)}}, "What?"]

    result = bring(as_lines({"messages": user(content)}, {"messages": user("Hello")}))

    assert result.converted.kind == "images"
    assert ["images" in row["messages"][0] for row in result.rows] == [True, False]


def test_mapping_names_the_columns_of_images(bring: Convert) -> None:
    row = {"q": "Which?", "a": "Both.", "left": data_url(RED), "right": data_url(BLUE)}
    mapping = Mapping(
        shape="prompt_completion",
        roles={"prompt": ["q"], "completion": ["a"], "images": ["left", "right"]},
        media="use",
    )

    result = bring(as_lines(row), mapping=mapping)

    assert first_turn(result)["images"] == [stored(RED), stored(BLUE)]


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_bytes_are_stored_as_they_were(bring: Convert, kind: str) -> None:
    content = image("green", kind=kind, size=(5, 9))
    row = {"image": data_url(content, "image/png"), "question": "What?", "answer": "Green"}

    result = bring(as_lines(row))

    image_of_row = first_turn(result)["images"][0]
    assert image_of_row == stored(content, size=(5, 9))
    assert result.folder.joinpath("images", image_of_row["sha256"]).read_bytes() == content


def test_exported_rows_come_back_with_their_images(bring: Convert) -> None:
    content = [{"type": "text", "text": "Is "}, PARTS["OpenAI"], {"type": "text", "text": "it?"}]
    first = bring(as_lines({"messages": user(content)}))
    digest = first_turn(first)["images"][0]["sha256"]
    rows = first.folder.joinpath("train.jsonl").read_bytes()

    again = bring(zipped({"train.jsonl": rows, f"images/{digest}": RED}), "export.zip")

    assert again.rows == first.rows
    assert again.converted.sha256 == first.converted.sha256
