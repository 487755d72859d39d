"""What OpenAI's own client is asked about images: a program, with whichever client there is.

    STUDIO_URL=… python -m tests.openai.images

The studio has a model named `llava`, which reads images.
"""

import base64
from io import BytesIO
from typing import Any

import openai
from PIL import Image

from tests.openai.connection import client, refused


def image(colour: str) -> dict[str, Any]:
    file = BytesIO()
    Image.new("RGB", (40, 30), colour).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def asking(*parts: dict[str, Any]) -> list[Any]:
    return [{"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}]


def check_images_are_read() -> None:
    options = {"model": "llava", "max_tokens": 8, "temperature": 0}
    plain = client.chat.completions.create(messages=asking(), **options)
    seen = client.chat.completions.create(messages=asking(image("red")), **options)
    two = client.chat.completions.create(messages=asking(image("red"), image("blue")), **options)

    assert plain.choices[0].message.role == seen.choices[0].message.role == "assistant"
    one = seen.usage.prompt_tokens - plain.usage.prompt_tokens
    assert one > 8
    assert two.usage.prompt_tokens - plain.usage.prompt_tokens == 2 * one


def check_answers_about_images_are_streamed() -> None:
    stream = client.chat.completions.create(
        model="llava",
        messages=asking(image("red")),
        max_tokens=8,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens > 0
    assert chunks[-2].choices[0].finish_reason in {"stop", "length"}


def check_bad_images_are_refused() -> None:
    def ask(model: str, part: dict[str, Any]) -> None:
        client.chat.completions.create(model=model, messages=asking(part), max_tokens=4)

    text_only = refused(openai.BadRequestError, lambda: ask("starter", image("red")))
    assert "reads text only" in text_only.message
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    problem = refused(openai.BadRequestError, lambda: ask("llava", broken))
    assert problem.param == "messages.0.content.0.image_url"
    inside = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/a.png"}}
    assert (
        "internal address" in refused(openai.BadRequestError, lambda: ask("llava", inside)).message
    )


if __name__ == "__main__":
    check_images_are_read()
    check_answers_about_images_are_streamed()
    check_bad_images_are_refused()
