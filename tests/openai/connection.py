"""A connection of OpenAI's client to a studio, and what its checks share."""

import io
import json
import os
import time
from collections.abc import Callable
from typing import Any

import openai
from openai import OpenAI

ROWS = [
    {
        "messages": [
            {"role": "system", "content": "Marv is a factual chatbot that is also sarcastic."},
            {"role": "user", "content": f"What's the capital of land {number}?"},
            {"role": "assistant", "content": f"Town {number}, as if everyone doesn't know."},
        ]
    }
    for number in range(16)
]
TINY: dict[str, Any] = {
    "precision": "fp32",
    "optimisation": {"max_steps": 3},
    "checkpoints": {"save_steps": 2},
    "data": {"max_length": 64},
    "evaluation": {"eval_steps": 2},
    "samples": {"prompts": 1, "max_new_tokens": 4},
}
"""A recipe that takes seconds."""
QUESTION: list[Any] = [{"role": "user", "content": "What is two plus two?"}]
WAIT_SECONDS = 120

client: Any = OpenAI(base_url=f"{os.environ['STUDIO_URL']}/v1", api_key="sk-local", max_retries=2)
known: dict[str, Any] = {"model": os.environ.get("STUDIO_MODEL", "")}
"""What one check leaves to those after it."""


def lines(rows: list[dict[str, Any]]) -> io.BytesIO:
    return io.BytesIO("".join(json.dumps(row) + "\n" for row in rows).encode())


def until(status: str, job: str) -> Any:  # noqa: ANN401 -- a client's own shape
    """Ask for a job until it has a status, as scripts do."""
    end = time.monotonic() + WAIT_SECONDS
    while True:
        told = client.fine_tuning.jobs.retrieve(job)
        if told.status == status:
            return told
        assert told.status != "failed", told
        assert time.monotonic() < end, told
        time.sleep(0.1)  # as scripts do: there is nothing else to wait for


def refused(kind: type[openai.APIStatusError], work: Callable[[], object]) -> Any:  # noqa: ANN401 -- a client's own shape
    try:
        work()
    except kind as error:
        return error
    raise AssertionError
