"""What OpenAI's own client is asked of embeddings: a program, with whichever client there is.

    STUDIO_URL=… python -m tests.openai.vectors

OpenAI's API has no jobs that train embeddings: the studio's own does.
"""

import json
import os
import time
import urllib.request
from typing import Any

import openai

from tests.openai.connection import WAIT_SECONDS, client

RECIPE: dict[str, Any] = {
    "method": "embed",
    "base_model": "starter",
    "dataset": "starter",
    "precision": "fp32",
    "optimisation": {"max_steps": 3},
    "data": {"max_length": 64},
}


def train() -> str:
    """Train embeddings, and return the name of the model."""
    run = call("runs", {"name": "Vectors", "recipe": RECIPE})
    end = time.monotonic() + WAIT_SECONDS
    while (told := call(f"runs/{run['id']}"))["status"] != "succeeded":
        assert told["status"] != "failed", told
        assert time.monotonic() < end, told
        time.sleep(0.1)  # as scripts do: there is nothing else to wait for
    return f"ft:starter:local::{run['id']}"


def call(path: str, body: Any = None) -> Any:  # noqa: ANN401 -- any JSON
    """Ask the studio's own API."""
    request = urllib.request.Request(  # noqa: S310 -- the studio under test
        f"{os.environ['STUDIO_URL']}/api/v1/{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:  # noqa: S310 -- the same
        return json.load(answer)


def check(model: str) -> None:
    """Expect numbers, though the client asks for base64 by itself."""
    texts = ["What is two plus two?", "Four."]
    plain = client.embeddings.create(model=model, input=texts)
    spelt = client.embeddings.create(
        model=model, input=texts, encoding_format="float", dimensions=16
    )
    vectors = [one.embedding for one in plain.data]

    assert [len(vector) for vector in vectors] == [192, 192]
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-4 for vector in vectors)
    assert plain.usage.prompt_tokens > len(texts)
    for one, vector in zip(spelt.data, vectors, strict=True):
        length = sum(x * x for x in vector[:16]) ** 0.5
        kept = [x / length for x in vector[:16]]
        assert max(abs(a - b) for a, b in zip(one.embedding, kept, strict=True)) < 1e-4
    assert model in [one.id for one in client.models.list()]


def check_refusal(model: str) -> None:
    """Expect the name of a model that gives vectors, instead of one that writes."""
    problem = ""
    try:
        client.embeddings.create(model="starter", input="Hi")
    except openai.BadRequestError as error:
        problem = str(error)
    assert model in problem


if __name__ == "__main__":
    trained = train()
    check(trained)
    check_refusal(trained)
