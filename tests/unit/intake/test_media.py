"""Rows with images, audio, video or files are refused by name; text about markup is text."""

from typing import Any

import pytest

from studio.intake.media import find_media


def user(content: Any) -> dict[str, Any]:  # noqa: ANN401 -- as people write content
    return {"messages": [{"role": "user", "content": content}]}


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
def test_media_is_known_by_column_part_and_placeholder(row: dict[str, Any], place: str) -> None:
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
def test_text_about_media_is_text(row: dict[str, Any]) -> None:
    assert find_media(row) == ""
