"""Files of every kind that people bring: one press on what was seen, then real training on it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trl
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.protocols.events import Finished, MetricsLogged
from studio.protocols.run_dir import RunDir
from studio.runner.execution import execute_run
from studio.services.runs import runs
from studio.settings import Settings
from studio.training.stop_handler import StopHandler
from studio.web.app import create_app
from studio.worker.processes import run_dir_setup
from tests.support.page_reader import form_fields, parse_page
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS = 24
LONGEST = 1024
"""Tokens, of which definitions of tools need many."""
TOOL = {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}
CALL = {"name": "add", "arguments": {"one": 1}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What becomes of a file: all that a person sees before pressing the button."""

    shape: str
    kind: str
    rows: int = ROWS


def ask(number: int) -> str:
    return f"What is {number} plus one?"


def answer(number: int) -> str:
    return f"It is {number + 1}."


def as_list(row: Callable[[int], dict[str, Any]]) -> bytes:
    return json.dumps([row(i) for i in range(ROWS)], indent=2).encode()


def as_lines(row: Callable[[int], dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row(i)) + "\n" for i in range(ROWS)).encode()


def alpaca(number: int) -> dict[str, Any]:
    more = f"Here it is {number}." if number % 3 else ""
    return {"instruction": "Add one to it.", "input": more, "output": answer(number)}


def pair(number: int) -> dict[str, Any]:
    """Two answers to one conversation, written as sharegpt does."""
    return {
        "conversations": [{"from": "human", "value": ask(number)}],
        "chosen": {"from": "gpt", "value": answer(number)},
        "rejected": {"from": "gpt", "value": "I do not know."},
    }


def judged(number: int) -> dict[str, Any]:
    turns = [("user", ask(number)), ("assistant", answer(number))]
    messages = [{"role": role, "content": content} for role, content in turns]
    return {"messages": messages, "label": number % 4 != 0}


def text(number: int) -> dict[str, Any]:
    return {"text": f"{ask(number)}\n{answer(number)} Then it goes on for a while."}


def question(number: int) -> dict[str, Any]:
    return {"question": ask(number), "answer": f"1+{number}=<<1+{number}>>.\n#### {number + 1}"}


def calling(number: int) -> dict[str, Any]:
    """Write a conversation in which a tool is called, as OpenAI does."""
    call = {"id": "1", "type": "function", "function": CALL | {"arguments": '{"one": 1}'}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": ask(number)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": str(number + 1)},
        {"role": "assistant", "content": answer(number)},
    ]
    return {"messages": messages, "tools": [{"type": "function", "function": TOOL}]}


def calling_by_turns(number: int) -> dict[str, Any]:
    """Write the same as sharegpt does."""
    turns = [
        ("human", ask(number)),
        ("function_call", json.dumps(CALL)),
        ("observation", str(number + 1)),
        ("gpt", answer(number)),
    ]
    said = [{"from": speaker, "value": value} for speaker, value in turns]
    return {"conversations": said, "tools": json.dumps([TOOL])}


FILES: dict[str, tuple[bytes, Brought]] = {
    "alpaca_en_demo.json": (as_list(alpaca), Brought(shape="alpaca", kind="conversation")),
    "dpo_en_demo.json": (as_list(pair), Brought(shape="preference", kind="preference")),
    "kto_en_demo.json": (as_list(judged), Brought(shape="judged", kind="judged")),
    "c4_demo.jsonl": (as_lines(text), Brought(shape="text", kind="text")),
    "wiki_demo.txt": (
        "\n\n".join(text(i)["text"] for i in range(ROWS)).encode(),
        Brought(shape="text", kind="text"),
    ),
    "gsm8k_train.jsonl": (
        as_lines(question),
        Brought(shape="prompt_completion", kind="conversation"),
    ),
    "tools.jsonl": (as_lines(calling), Brought(shape="messages", kind="conversation")),
    "tools_by_turns.json": (
        as_list(calling_by_turns),
        Brought(shape="sharegpt", kind="conversation"),
    ),
}


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model whose chat template writes tools and their calls."""
    config = tiny.llama()
    config.max_position_embeddings = LONGEST
    folder = tiny.write_model(tmp_path_factory.mktemp("caller") / "caller", config)
    family = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"
    tiny.tokenizer(family.read_text("utf-8")).save_pretrained(folder)
    return folder


@pytest.fixture
def client(engine: Engine, settings: Settings, caller: Path) -> TestClient:
    client = TestClient(create_app(engine, settings))
    source = {"kind": "folder", "path": str(caller)}
    client.post("/api/v1/models", json={"name": "caller", "source": source}).raise_for_status()
    return client


def bring(client: TestClient, filename: str, content: bytes) -> dict[str, Any]:
    """Bring a file, and press the one button of the screen that says what was seen in it."""
    screen = client.post("/datasets", files={"file": (filename, content)})
    form = form_fields(parse_page(screen.text).one("form", id="form"))
    page = client.post(screen.url.path, data=dict(form))
    made = client.get(f"/api/v1/datasets/{page.url.path.rpartition('/')[2]}")
    told: dict[str, Any] = made.raise_for_status().json()
    return told


def train(client: TestClient, engine: Engine, settings: Settings, dataset: str) -> RunDir:
    """Train two steps on a data set. Return the run's folder."""
    recipe = {
        "base_model": "caller",
        "dataset": dataset,
        "precision": "fp32",
        "adapter": {"kind": "full"},
        "optimisation": {"max_steps": 2, "per_device_train_batch_size": 2},
        "data": {"max_length": LONGEST, "validation_share": 0.2},
        "samples": {"prompts": 0},
    }
    asked = client.post("/api/v1/runs", json={"name": "two steps", "recipe": recipe})
    number = asked.raise_for_status().json()["id"]
    folder = RunDir(settings.runs / str(number))
    with unit_of_work(engine) as db:
        run_dir_setup.write_run_dir(db, runs.get(db, number), folder, settings)
    execute_run(folder.root, StopHandler())
    return folder


@pytest.mark.parametrize("filename", FILES)
def test_imported_file_can_be_trained_on(
    client: TestClient, engine: Engine, settings: Settings, filename: str
) -> None:
    content, expected = FILES[filename]

    made = bring(client, filename, content)
    run = train(client, engine, settings, made["name"])

    assert Brought(shape=made["shape"], kind=made["kind"], rows=made["train_rows"]) == expected
    assert made["removed"] == {}
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert [
        event.step for event in tiny.events_of(run, MetricsLogged) if "loss" in event.metrics
    ] == [
        1,
        2,
    ]
    assert all(loss > 0 for loss in tiny.metric_values(run, "loss"))
