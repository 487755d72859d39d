"""Texts with marked entities, from the file to the model that finds entities."""

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.errors import InvalidError
from studio.protocols.entity_reports import ENTITY_REPORTS, EntityReport, EntityScore
from studio.protocols.inference_service import GenerationChunk, GenerationEnd, WordTag
from studio.protocols.run_dir import RunDir
from studio.services.chat.predictions import FoundEntity, list_entities, split_text
from studio.settings import Settings
from tests.support import inference_services, tokenizer_services
from tests.support.factories import connect_worker, make_finished_run
from tests.support.inference_services import LOADING, STARTED
from tests.support.page_reader import parse_page
from tests.web.chat.test_try_it import write_files

TEXT = "Ada Bell lives in Rome."
ROWS: list[dict[str, object]] = [
    {
        "text": f"{number}: {TEXT}",
        "entities": [
            {"start": len(f"{number}: "), "end": len(f"{number}: ") + 8, "label": "person"}
        ],
    }
    for number in range(30)
]


@pytest.fixture
def texts(client: TestClient) -> int:
    """Add a dataset of texts with the places of their entities."""
    return add(client, "texts", ROWS)


def add(client: TestClient, name: str, rows: Sequence[Mapping[str, object]]) -> int:
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    files = {"file": (f"{name}.jsonl", io.BytesIO(content), "application/jsonl")}
    answer = client.post("/api/v1/datasets", files=files, data={"name": name})
    assert answer.status_code == 201, answer.text
    return int(answer.json()["id"])


def test_entities_are_marked_with_their_labels(client: TestClient, texts: int) -> None:
    page = parse_page(client.get(f"/datasets/{texts}").text)
    (row,) = client.get(f"/api/v1/datasets/{texts}/rows?limit=1").json()["data"]

    assert page.all("mark", class_="entity")[0].text == "Ada Bell person"
    assert row["words"] == ["0", ":", "Ada", "Bell", "lives", "in", "Rome", "."]
    assert row["tags"] == ["O", "O", "B-person", "I-person", "O", "O", "O", "O"]


def test_only_their_method_is_offered(client: TestClient, texts: int) -> None:
    page = parse_page(client.get(f"/new?from=dataset:{texts}").text)

    assert page.one("input", name="method").attributes["value"] == "tokens"
    assert "Learn to find entities" in client.get(f"/datasets/{texts}").text
    assert "Learn from text" not in parse_page(client.get(f"/datasets/{texts}").text).text


def test_texts_without_entities_are_refused_before_the_start(client: TestClient) -> None:
    add(client, "plain", [{"tokens": ["Row", str(i)], "ner_tags": ["O", "O"]} for i in range(9)])
    add(client, "marked", [*ROWS[:1], *({"text": "Rome.", "entities": []} for _ in range(9))])
    recipe = {"method": "tokens", "base_model": "starter"}
    refused, taken = (
        client.post("/api/v1/runs", json={"name": name, "recipe": recipe | {"dataset": name}})
        for name in ("plain", "marked")
    )

    assert refused.json()["error"]["message"] == "No word of these texts is marked as an entity."
    assert taken.status_code == 201, taken.text


def report(step: int, f1: float) -> EntityReport:
    scores = [
        EntityScore(label="person", precision=0.8, recall=0.5, f1=0.62, support=8, given=5),
        EntityScore(label="town", precision=0, recall=0, f1=0, support=0, given=1),
    ]
    return EntityReport(step=step, texts=10, f1=f1, labels=scores)


@pytest.fixture
def run(client: TestClient, engine: Engine, settings: Settings, texts: int) -> RunDir:
    """Make a finished run that has validated twice, better the first time."""
    with unit_of_work(engine) as db:
        made = make_finished_run(db, "finder", method="tokens", dataset="texts")
    folder = RunDir(settings.runs / str(made.id))
    folder.root.mkdir(parents=True)
    ENTITY_REPORTS.append(folder, report(0, 0.7))
    ENTITY_REPORTS.append(folder, report(20, 0.6))
    assert client.get(f"/datasets/{texts}").status_code == 200
    return folder


@pytest.mark.usefixtures("run")
def test_page_and_api_show_each_label(client: TestClient) -> None:
    table = parse_page(client.get("/runs/1").text).one(id="main").one("table", class_="grid")
    rows = [[cell.text for cell in row.all("td")] for row in table.all("tr")]

    assert rows[1:] == [["0.80", "0.50", "0.62", "8"], ["not measured", "0"]]
    assert client.get("/api/v1/runs/1/entities").json()["step"] == 20


def test_api_says_that_nothing_is_measured(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db, "writer")
    answer = client.get("/api/v1/runs/1/entities")

    assert answer.status_code == 409
    assert "Only token classification" in answer.json()["error"]["hint"]


@pytest.fixture(scope="module")
def tokenizer_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("desk")
    tokenizer_services.write_model(home / "base")
    with tokenizer_services.run_tokenizer_service(Settings(home=home)):
        yield home


TAGS = ["B-person", "I-person", "O", "O", "B-town", "O"]
FOUND = GenerationEnd(
    reason="stop",
    tokens=20,
    computed_in="float32",
    tags=[WordTag(tag=tag, likely=0.5 + place / 10) for place, tag in enumerate(TAGS)],
)


@pytest.fixture
def finder(engine: Engine, settings: Settings, tokenizer_home: Path, texts: int) -> RunDir:
    """Make a finished run with an adapter, and let a worker be connected."""
    (settings.home / "desk.sock").symlink_to(tokenizer_home / "desk.sock")
    with unit_of_work(engine) as db:
        connect_worker(db, "plain")
        made = make_finished_run(db, "finder", method="tokens", dataset="texts")
        folder = write_files(settings, made, tokenizer_home / "base")
    tokenizer_services.write_model(folder.artifacts)
    assert texts
    return folder


@pytest.mark.usefixtures("finder")
def test_api_returns_the_entities_of_a_text(client: TestClient, settings: Settings) -> None:
    chunks = [LOADING, STARTED, GenerationChunk(end=FOUND)]
    with inference_services.run_inference_service(settings, lambda _: chunks) as service:
        turns = [{"role": "user", "content": TEXT}]
        answer = client.post("/api/v1/runs/1/predict", json={"messages": turns})

    assert answer.json()["entities"] == [
        {"start": 0, "end": 8, "label": "person", "score": 0.55, "text": "Ada Bell"},
        {"start": 18, "end": 22, "label": "town", "score": 0.9, "text": "Rome"},
    ]
    (request,) = service.requests
    assert (request.gives_scores, request.gives_tags, len(request.places)) == (True, True, 6)
    assert request.places == sorted(set(request.places))


@pytest.mark.usefixtures("finder")
def test_page_marks_the_entities_of_a_text(client: TestClient, settings: Settings) -> None:
    form = parse_page(client.get("/runs/1").text).one(id="try-form")
    chunks = [STARTED, GenerationChunk(end=FOUND)]
    with inference_services.run_inference_service(settings, lambda _: chunks):
        sent = {"prompt": f"{TEXT} And more."}
        result = parse_page(client.post(form.attributes["action"], data=sent).text)

    assert "Find entities" in form.text
    assert [one.text for one in result.all("mark")] == ["Ada Bell person", "Rome town"]
    assert "The end of the text was not read" in result.text


def test_entities_are_listed_with_their_places() -> None:
    tags = [WordTag(tag=tag, likely=1) for tag in ("I-x", "O", "B-x", "B-x")]

    assert list_entities("a, b\nc", tags) == [
        FoundEntity(0, 1, "x", 1),
        FoundEntity(3, 4, "x", 1),
        FoundEntity(5, 6, "x", 1),
    ]


def test_text_is_split_into_words_without_tags() -> None:
    turns = [{"role": "system", "content": "a."}, {"role": "user", "content": "b"}]

    assert split_text({"messages": turns}) == {
        "text": "a.\nb",
        "words": ["a", ".", "b"],
        "tags": ["O"] * 3,
    }
    with pytest.raises(InvalidError, match="A text is required"):
        split_text({"messages": [{"role": "user", "content": " "}]})
