"""What answers in the playground: the model that a column names, whatever was asked before it."""

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from sqlalchemy import Engine
from transformers import AutoModelForCausalLM, AutoTokenizer

from studio.db.column_types import now
from studio.db.session import unit_of_work
from studio.db.tables import Worker
from studio.methods import RECIPE_ADAPTER
from studio.protocols import tokenizer_service
from studio.protocols.run_dir import RunDir
from studio.services.operations.home import open_home
from studio.services.workers import workers
from studio.settings import Settings
from studio.training.checkpoints import trainer_state
from studio.training.checkpoints.store import CheckpointStore
from studio.web.app import create_app
from studio.worker.socket_services import InferenceService, SocketService
from tests.support import evaluated_runs, factories
from tests.support.live_studio import prepare
from tests.training.tiny import RECIPE
from tests.worker.ticking import ticking

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

QUESTION = [{"role": "user", "content": "Tell me a story about a fox."}]
FORMATS = {"model:1": "", "run:1": "", "run:1:20": "", "base:1": "bfloat16"}
"""Each model that is asked, and its number format."""


@dataclass(slots=True)
class Services:
    """The inference service and the tokenizer service, which a thread tends as a worker does."""

    inference: InferenceService
    tokenizer: SocketService
    must_restart: threading.Event

    def tick(self) -> None:
        if self.must_restart.is_set():
            if self.inference.service.child is not None:
                self.inference.service.child.kill()
                self.inference.service.child.wait()
            self.must_restart.clear()
        self.inference.tick(lambda: 1, lambda: None, lambda: None)
        self.tokenizer.tick()


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = Settings(
        home=tmp_path_factory.mktemp("asked") / "home", allowed_hosts="testserver", slots=1
    )
    prepare(settings)
    return settings


@pytest.fixture(scope="module")
def engine(settings: Settings) -> Iterator[Engine]:
    """Make a run whose adapter and checkpoint each give other answers than the base model."""
    engine = open_home(settings)
    with unit_of_work(engine) as db:
        beat_at = now() + timedelta(hours=1)
        workers.heartbeat(db, Worker(name="w", pid=1, slots=1, beat_at=beat_at))
        run = factories.make_finished_run(db, adapter={"kind": "lora"}, precision="fp32")
        write_models(evaluated_runs.lay_out(db, settings, run), settings.models / "starter")
    yield engine
    engine.dispose()


def write_models(folder: RunDir, base: Path) -> None:
    """Write an adapter and a checkpoint that have learnt nothing, and change every answer."""
    for seed, step in ((1, 20), (2, None)):
        torch.manual_seed(seed)
        config = LoraConfig(
            task_type="CAUSAL_LM", r=4, target_modules="all-linear", init_lora_weights=False
        )
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        if step is None:
            model.save_pretrained(folder.artifacts)
            AutoTokenizer.from_pretrained(base).save_pretrained(folder.artifacts)
            continue
        store = CheckpointStore(folder.checkpoints, RECIPE_ADAPTER.validate_python(RECIPE))
        with store.write(step, None) as partial:
            save_file(trainer_state.trained_weights(model), partial / trainer_state.WEIGHTS)


@pytest.fixture(scope="module")
def services(settings: Settings) -> Iterator[Services]:
    tokenizer = SocketService(
        tokenizer_service.socket_path(settings.home), tokenizer_service.MODULE
    )
    services = Services(InferenceService(settings), tokenizer, threading.Event())
    services.tick()
    with ticking(services.tick):
        yield services
    services.inference.close()
    services.tokenizer.close()


@pytest.fixture(scope="module")
def client(engine: Engine, settings: Settings, services: Services) -> TestClient:  # noqa: ARG001 -- they answer
    return TestClient(create_app(engine, settings))


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    source: dict[str, Any]
    end: dict[str, Any]


def ask(client: TestClient, model: str, **changes: Any) -> Answer:  # noqa: ANN401 -- any field of the request
    body = {"model": model, "format": FORMATS[model], "messages": QUESTION, "max_tokens": 16}
    answer = client.post("/playground/answers", json=body | changes)
    events = [json.loads(line[5:]) for line in answer.text.splitlines() if line[:5] == "data:"]
    assert "end" in events[-1], events
    text = "".join(event.get("text", "") for event in events)
    return Answer(text, events[-1]["source"], events[-1]["end"])


def texts(client: TestClient, models: Sequence[str]) -> dict[str, str]:
    return {model: ask(client, model).text for model in models}


@pytest.fixture(scope="module")
def fresh(client: TestClient, services: Services) -> dict[str, str]:
    """Return what each model answers in a process that has loaded no other."""
    answers = {}
    for model in FORMATS:
        services.must_restart.set()
        while services.must_restart.is_set():
            threading.Event().wait(0.01)
        answers[model] = ask(client, model).text
    return answers


def test_each_model_gives_another_answer(fresh: dict[str, str]) -> None:
    base, tuned, checkpoint = (fresh[model] for model in ("model:1", "run:1", "run:1:20"))

    assert len({base, tuned, checkpoint}) == 3


@pytest.mark.parametrize("order", [*permutations(("model:1", "run:1"))])
def test_base_and_tuned_answer_as_in_fresh_processes_in_both_orders(
    client: TestClient, services: Services, fresh: dict[str, str], order: tuple[str, str]
) -> None:
    services.must_restart.set()

    assert texts(client, order) == {model: fresh[model] for model in order}
    assert texts(client, order) == {model: fresh[model] for model in order}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_all_columns_answer_as_in_fresh_processes(
    client: TestClient, fresh: dict[str, str], *, is_reversed: bool
) -> None:
    order = [*reversed(FORMATS)] if is_reversed else [*FORMATS]

    assert texts(client, order) == fresh


def test_answer_names_what_gave_it(client: TestClient) -> None:
    sources = {model: ask(client, model).source for model in FORMATS}

    assert {(row["base"], row["computed_in"]) for row in sources.values()} == {
        ("starter", "float32")
    }
    named = [
        (row["run"], row["is_adapter"], row["step"], row["rounded_to"]) for row in sources.values()
    ]
    assert named == [
        (None, False, None, ""),
        (1, True, None, ""),
        (1, True, 20, ""),
        (None, False, None, "bfloat16"),
    ]
    (template,) = {row["template"] for row in sources.values()}
    assert len(template) == 8


def test_seed_that_was_drawn_gives_same_answer_again(client: TestClient) -> None:
    drawn = ask(client, "run:1", temperature=1.5)
    again = ask(client, "run:1", temperature=1.5, seed=drawn.source["seed"])

    assert again.text == drawn.text
    assert len({ask(client, "run:1", temperature=1.5).text for _times in range(3)}) > 1
