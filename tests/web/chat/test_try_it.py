"""What a model that gives scores says of a text: the box on its run's page, and the REST route."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine
from transformers import AutoTokenizer

from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.protocols.inference_service import GenerationChunk, GenerationEnd
from studio.protocols.run_dir import JobSpec, RunDir
from studio.settings import Settings
from tests.support import factories, inference_services, tokenizer_services
from tests.support.inference_services import LOADING, NO_SLOT, STARTED
from tests.support.page_reader import parse_page
from tests.web.runs.test_score_runs import pairs

__all__ = ["pairs"]

PREDICT = "/api/v1/runs/1/predict"
TURNS = [
    {"role": "user", "content": "What is 3 and one?"},
    {"role": "assistant", "content": "It is 4."},
]
END = GenerationEnd(reason="stop", tokens=20, computed_in="float32", scores={"score": 1.25})
SCORED = [LOADING, STARTED, GenerationChunk(end=END)]


@pytest.fixture(scope="module")
def tokenizer_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("desk")
    tokenizer_services.write_model(home / "base")
    with tokenizer_services.run_tokenizer_service(Settings(home=home)):
        yield home


@pytest.fixture
def run(engine: Engine, settings: Settings, tokenizer_home: Path, pairs: str) -> RunDir:
    """Make a finished reward model with an adapter, and let a worker be connected."""
    (settings.home / "desk.sock").symlink_to(tokenizer_home / "desk.sock")
    with unit_of_work(engine) as db:
        factories.connect_worker(db, "plain")
        made = factories.make_finished_run(db, method="reward", dataset=pairs)
        folder = write_files(settings, made, tokenizer_home / "base")
        factories.make_finished_run(db, "writer")
    tokenizer_services.write_model(folder.artifacts)
    return folder


def write_files(settings: Settings, run: Run, base: Path) -> RunDir:
    folder = RunDir(settings.runs / str(run.id))
    folder.root.mkdir(parents=True)
    spec = JobSpec(
        run_id=run.id or 0, name=run.name, model=str(base), train=folder.root, validation=None
    )
    folder.job.write_text(spec.model_dump_json())
    return folder


def predict(client: TestClient, path: str = PREDICT, **changes: Any) -> Any:  # noqa: ANN401 -- any field of the request
    return client.post(path, json={"messages": TURNS} | changes)


def test_answer_is_scored_as_in_training(
    client: TestClient, settings: Settings, run: RunDir
) -> None:
    with inference_services.run_inference_service(settings, lambda _: SCORED) as service:
        answer = predict(client)

    scores = {
        "scores": {"score": 1.25},
        "labels": [],
        "steps": [],
        "entities": [],
        "neighbours": [],
    }
    expected = scores | {"answer": "", "tokens": 20, "computed_in": "float32"}
    assert (answer.status_code, answer.json()) == (200, expected)
    (request,) = service.requests
    assert (request.gives_scores, request.adapter) == (True, str(run.artifacts))
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    assert reader.decode(request.ids).endswith("It is 4.<|im_end|>\n")


@pytest.mark.usefixtures("run")
def test_page_shows_the_score(client: TestClient, settings: Settings) -> None:
    form = parse_page(client.get("/runs/1").text).one(id="try-form")
    with inference_services.run_inference_service(settings, lambda _: SCORED):
        sent = {"prompt": "What is 3 and one?", "answer": "It is 4."}
        result = parse_page(client.post(form.attributes["action"], data=sent).text)

    assert result.one("dl").text.split() == ["Score", "1.250"]


def test_text_is_rewritten_as_in_training(
    client: TestClient, engine: Engine, settings: Settings, run: RunDir
) -> None:
    """The model gets the text alone, with no marks of turns."""
    with unit_of_work(engine) as db:
        made = factories.make_finished_run(db, method="seq2seq", base_model="google-t5/t5-small")
        folder = write_files(settings, made, Path(run.root))
    tokenizer_services.write_model(folder.artifacts)
    chunks = [STARTED, GenerationChunk(text="Das "), GenerationChunk(text="Haus")]
    end = GenerationChunk(end=GenerationEnd(reason="length", tokens=2))
    with inference_services.run_inference_service(settings, lambda _: [*chunks, end]) as service:
        answer = predict(client, f"/api/v1/runs/{made.id}/predict", messages=TURNS[:1])
        page = client.post(f"/runs/{made.id}/try", data={"prompt": "The house"})

    assert (answer.json()["answer"], answer.json()["scores"]) == ("Das Haus", {})
    shown = parse_page(page.text).one(id="try-result").text
    assert "Das Haus" in shown
    assert "may be incomplete" in shown
    request = service.requests[0]
    assert (request.gives_scores, request.temperature, request.most) == (False, 0.0, 512)
    reader = AutoTokenizer.from_pretrained(folder.artifacts)
    assert reader.decode(request.ids) == "What is 3 and one?"
    assert request.stops == [reader.eos_token_id]


@pytest.mark.usefixtures("run")
def test_page_says_why_there_is_no_score(client: TestClient, settings: Settings) -> None:
    with inference_services.run_inference_service(settings, lambda _: [NO_SLOT]):
        shown = client.post("/runs/1/try", data={"prompt": "A question", "answer": "Yes"})

    assert "No slot is free." in parse_page(shown.text).one(id="try-result").text


@pytest.mark.usefixtures("run")
def test_a_model_that_writes_gives_no_scores(client: TestClient) -> None:
    answer = predict(client, "/api/v1/runs/2/predict")

    assert (answer.status_code, answer.json()["error"]["message"]) == (
        409,
        "The model of this run holds conversations.",
    )
    assert "try-form" not in client.get("/runs/2").text


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": ""}], [{"role": "user"}]])
@pytest.mark.usefixtures("run")
def test_malformed_conversations_are_refused(client: TestClient, messages: list[Any]) -> None:
    assert predict(client, messages=messages).status_code == 422


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("method", "scores", "labels", "shown"),
    [
        ("classify", {"news": 0.7, "sport": 0.6}, ["news", "sport"], "news, sport news 0.700"),
        ("classify", {"news": 0.3, "sport": 0.1}, [], "No label news 0.300"),
        ("regress", {"price": 51234.5}, [], "price 51234.5"),
        ("regress", {"number": 2.0}, [], "Number 2"),
    ],
)
def test_page_names_labels_and_numbers(  # noqa: PLR0913, PLR0917 -- one argument per column
    method: str,
    scores: dict[str, float],
    labels: list[str],
    shown: str,
    client: TestClient,
    engine: Engine,
    settings: Settings,
    tokenizer_home: Path,
) -> None:
    with unit_of_work(engine) as db:
        made = factories.make_finished_run(db, method, method=method)
        folder = write_files(settings, made, tokenizer_home / "base")
    tokenizer_services.write_model(folder.artifacts)
    chunk = GenerationChunk(end=END.model_copy(update={"scores": scores, "labels": labels}))
    with inference_services.run_inference_service(settings, lambda _: [LOADING, STARTED, chunk]):
        result = client.post(f"/runs/{made.id}/try", data={"prompt": "A match"})

    text = " ".join(parse_page(result.text).one(id="try-result").text.split())
    assert text.startswith(shown)
