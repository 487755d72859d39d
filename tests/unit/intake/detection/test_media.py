"""Rows with audio, video, files or unused images are refused by name; text about markup is text."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from studio.errors import InvalidError
from studio.intake.conversion.converter import SourceFile, inspect_file
from studio.intake.detection.media import find_media
from studio.intake.files.limits import Limits
from studio.intake.mapping import Mapping
from tests.unit.intake.conftest import Convert

TEXT = {"prompt": "Who?", "completion": "Me."}
SPOKEN = {"prompt": "Who is this?", "completion": "Ann.", "audios": ["ann.wav"]}
PAIR = {"prompt": ["prompt"], "completion": ["completion"]}


def user(content: Any) -> dict[str, Any]:  # noqa: ANN401 -- as people write content
    return {"messages": [{"role": "user", "content": content}]}


def as_lines(*rows: dict[str, Any]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize(
    ("row", "place"),
    [
        pytest.param({"images": ["a.jpg"], **user("<image>what")}, "images", id="ms-swift"),
        pytest.param({"audios": ["x.wav"], "text": "a"}, "audios", id="audios"),
        pytest.param({"videos": ["x.mp4"], "text": "a"}, "videos", id="LLaMA-Factory"),
        pytest.param({"image": "coco/0003.jpg", "text": "a"}, "image", id="LLaVA"),
        pytest.param({"image_url": "https://a.b/c", "text": "a"}, "image_url", id="address"),
        pytest.param({"image": '["a.jpg", "b.jpg"]', "text": "a"}, "image", id="list in a cell"),
        pytest.param({"image": {"bytes": b"a", "path": None}}, "image", id="image feature"),
        pytest.param({"seen": {"bytes": b"a", "path": None}}, "seen", id="feature by any name"),
        pytest.param({"seen": b"\x89PNG\r\n"}, "seen", id="bytes of a PNG"),
        pytest.param({"audio": {"array": [0.1], "sampling_rate": 16_000}}, "audio", id="audio"),
        pytest.param({"file_name": "1.png", "text": "a dog"}, "file_name", id="image folder"),
        pytest.param({"path": "a_1.mp3", "sentence": "Hello"}, "path", id="Common Voice"),
        pytest.param({"question": "q", "image_id": 391_895}, "image_id", id="VQA"),
        pytest.param(
            user([{"type": "image_url", "image_url": {"url": "https://a.b/c"}}]),
            "messages: image_url",
            id="OpenAI image",
        ),
        pytest.param(
            user([{"type": "input_audio", "input_audio": {"data": "QQ", "format": "wav"}}]),
            "messages: input_audio",
            id="OpenAI audio",
        ),
        pytest.param(
            user([{"type": "file", "file": {"file_id": "file-1"}}]), "messages: file", id="file"
        ),
        pytest.param(
            user([{"type": "image", "source": {"type": "base64", "data": "QQ"}}]),
            "messages: image",
            id="Anthropic image",
        ),
        pytest.param(user([{"image": "a.png"}, {"text": "hi"}]), "messages: image", id="Qwen"),
        pytest.param(
            {"messages": '[{"role": "user", "content": [{"type": "video"}]}]'},
            "messages: video",
            id="turns in a cell",
        ),
        pytest.param(
            {"conversations": [{"from": "human", "value": "Who?", "image": "a.jpg"}]},
            "conversations: image",
            id="key of a turn",
        ),
        pytest.param(
            {"prompt": "<image>\nName the elements."}, "prompt: <image>", id="placeholder"
        ),
        pytest.param({"prompt": "<video>What is it?"}, "prompt: <video>", id="video placeholder"),
        pytest.param({"prompt": "<|image_1|>\nWhat?"}, "prompt: <|image_1|>", id="Phi"),
        pytest.param({"prompt": "data:image/png;base64,iVBOR"}, "prompt", id="data address"),
        pytest.param(
            {"prompt": "What? ![](data:image/png;base64,iVBOR)"}, "prompt: data:", id="Markdown"
        ),
    ],
)
def test_media_is_detected_by_column_part_and_placeholder(row: dict[str, Any], place: str) -> None:
    assert find_media(row) == place


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "How do I use the <video> tag?", "completion": "<video src='a'></video>"},
        {"prompt": "What is <image> in SVG?", "completion": 'It is <image href="x"/>.'},
        {"prompt": "What does `<image>` do?", "completion": "```html\n<video>\n```"},
        {"prompt": "<body>\n<video>\n<source src=a>\n</video>", "completion": "x"},
        {"image": "A cat on a mat", "prompt": "x"},
        {"image": "cat", "prompt": "x"},
        {"images": [], "image": None, "audio": "", "prompt": "x"},
        {"images": 3, "photos": "4", "prompt": "x"},
        {"speech": "Four score and seven years ago"},
        {"video_id": "dQw4w9WgXcQ", "text": "What was said"},
        {"path": "src/main.py", "file_name": "a.txt", "content": "print()"},
        {"files": [{"path": "a.py", "content": "x"}], "prompt": "x"},
        {"documents": [{"type": "document", "text": "x"}], "meta": {"type": "file"}},
        {"completion": '{"image": "a.jpg"}'},
        {"completion": "body { background: url(data:image/png;base64,AAAA) }"},
        {
            "tools": [{"name": "see", "parameters": {"image_url": {"type": "string"}}}],
            "messages": [{"role": "assistant", "tool_calls": [{"arguments": {"image": "a.jpg"}}]}],
        },
    ],
)
def test_text_about_media_is_not_detected_as_media(row: dict[str, Any]) -> None:
    assert find_media(row) == ""


def test_media_file_is_rejected_with_column_name(bring: Convert) -> None:
    with pytest.raises(InvalidError) as refused:
        bring(as_lines(*[SPOKEN] * 3))

    assert refused.value.message == (
        "3 of 3 rows contain an image, audio, video or file that is not used; the first is in "
        "audios."
    )
    assert refused.value.param == "file"


def test_partly_media_file_is_rejected_without_media_option(bring: Convert) -> None:
    content = as_lines(TEXT, *[SPOKEN] * 2, {**TEXT, "prompt": "Why?"})

    with pytest.raises(InvalidError, match="2 of 4 rows contain an image"):
        bring(content)
    result = bring(
        content, mapping=Mapping(shape="prompt_completion", roles=PAIR, media="leave_out")
    )

    assert result.converted.rows == 2
    assert result.converted.removed == {"media": 2}


def test_ignoring_media_keeps_rows_as_text(bring: Convert) -> None:
    mapping = Mapping(shape="prompt_completion", roles=PAIR, media="ignore")

    assert bring(as_lines(*[SPOKEN] * 2), mapping=mapping).converted.rows == 2


def test_partly_media_file_is_detected_as_guess_with_question(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(as_lines(*[TEXT] * 9, SPOKEN), encoding="utf-8")

    seen = inspect_file(SourceFile(path=path, filename=path.name), Limits()).detected

    assert seen.sureness == "guess"
    assert [question[:24] for question in seen.questions] == ["1 of 10 rows contain an "]


def test_media_file_with_later_text_rows_is_not_rejected(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(as_lines(*[SPOKEN] * 600, TEXT), encoding="utf-8")

    seen = inspect_file(SourceFile(path=path, filename=path.name), Limits()).detected

    assert seen.questions[0].startswith("600 of 601 rows")


def test_unused_parquet_image_column_is_detected(bring: Convert, tmp_path: Path) -> None:
    rows = [{**TEXT, "picture": None}, {**TEXT, "picture": {"bytes": b"\x89PNG", "path": "a"}}]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    mapping = Mapping(shape="prompt_completion", roles=PAIR)

    with pytest.raises(InvalidError, match=r"1 of 2 rows .* picture\."):
        bring(path.read_bytes(), "rows.parquet", mapping)


def test_plain_text_may_contain_media_placeholders(bring: Convert) -> None:
    assert bring("<image>\n\nIs a placeholder.\n", "notes.txt").converted.rows == 2
