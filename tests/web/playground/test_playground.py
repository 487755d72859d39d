"""The playground: its page and its parts, what its address holds, and the streamed answers."""

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.protocols.run_dir import JobSpec, RunDir
from studio.services.models import models
from studio.settings import Settings
from tests.support import factories, inference_services, tokenizer_services
from tests.support.inference_services import NO_SLOT, words
from tests.support.page_reader import Node, parse_page

pytestmark = pytest.mark.smoke

QUESTION = [{"role": "user", "content": "What is 3 and one?"}]


@pytest.fixture(scope="module")
def tokenizer_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("desk")
    tokenizer_services.write_model(home / "base")
    with tokenizer_services.run_tokenizer_service(Settings(home=home)):
        yield home


@pytest.fixture
def base(settings: Settings, engine: Engine, tokenizer_home: Path) -> Path:
    """Let the home have a tokenizer service, and its base model a chat template."""
    (settings.home / "desk.sock").symlink_to(tokenizer_home / "desk.sock")
    with unit_of_work(engine) as db:
        factories.connect_worker(db, "plain")
        model = models.get(db, 1)
        return tokenizer_services.write_model(Path(model.location))


def write_files(settings: Settings, run: Run, base: Path, *steps: int) -> RunDir:
    folder = RunDir(settings.runs / str(run.id))
    folder.root.mkdir(parents=True)
    spec = JobSpec(
        run_id=run.id or 0, name=run.name, model=str(base), train=folder.root, validation=None
    )
    folder.job.write_text(spec.model_dump_json())
    for step in steps:
        (folder.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    return folder


@pytest.fixture
def run(engine: Engine, settings: Settings, base: Path) -> RunDir:
    """Make a finished LoRA run with its adapter and a checkpoint."""
    with unit_of_work(engine) as db:
        folder = write_files(settings, factories.make_finished_run(db, "plurals"), base, 5)
    return RunDir(tokenizer_services.write_model(folder.artifacts).parent)


def ask(client: TestClient, model: str, **changes: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- any field of the request
    """Ask a model, and return the events of its answer."""
    body = {"model": model, "messages": QUESTION} | changes
    answer = client.post("/playground/answers", json=body)
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:")]


def column_heads(page: Node) -> list[Node]:
    return page.all("section", class_="column")


def raw_text(node: Node) -> str:
    """Return the text of an element with its spaces and line breaks."""
    return "".join(part for part in node.parts if isinstance(part, str))


def address(**fields: Any) -> str:  # noqa: ANN401 -- any field of the address
    return "/playground?" + urlencode(fields, doseq=True)


@pytest.mark.usefixtures("run")
def test_page_begins_with_newest_run_beside_its_base(client: TestClient) -> None:
    page = parse_page(client.get("/playground").text)
    heads = column_heads(page)

    assert [head.attributes["data-model"] for head in heads] == ["base:1", "run:1"]
    assert [head.one("strong").text for head in heads] == ["starter", "plurals"]
    assert heads[0].attributes["data-memory"] == heads[1].attributes["data-memory"] != ""
    assert "plurals #1" in page.one(id="playground-prompts").text
    assert page.all("button", class_="chat-try")


@pytest.mark.usefixtures("run")
def test_address_holds_models_settings_and_prompt(client: TestClient) -> None:
    query = {
        "model": ["model:1", "run:1:5"],
        "format.1": "bfloat16",
        "temperature": "0.5",
        "stop": ["\n", "End"],
        "system": "Be brief.",
        "max_tokens.2": "9",
        "seed.2": "",
        "prompt": "Why?",
        "mode": "text",
    }
    page = parse_page(client.get(address(**query)).text)
    first, second = column_heads(page)

    assert [head.attributes["data-model"] for head in (first, second)] == ["model:1", "run:1:5"]
    assert page.one("textarea", id="chat-prompt").text == "Why?"
    assert page.one("input", id="chat-temperature").attributes["value"] == "0.5"
    assert raw_text(page.one("textarea", id="chat-stop")) == "\\n\nEnd"
    assert page.one("textarea", id="chat-system").text == "Be brief."
    assert "hidden" in first.one("form").attributes
    assert "hidden" not in second.one("form").attributes
    own = {field.attributes["name"]: field for field in second.all("input")}
    assert own["max_tokens"].attributes["value"] == "9"
    assert own["temperature"].attributes["value"] == "0.5"  # that of all
    (chosen,) = [one for one in first.all("option") if "selected" in one.attributes]
    assert chosen.text == "Rounded to bfloat16"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("model=7", "names no model"),
        ("model=run:1:x", "names no model"),
        ("model=run:1" + "&model=run:1" * 4, "has 5 models"),
        ("temperature=3", "temperature in this address has an invalid value"),
        ("model=run:1&max_tokens.1=0", "max_tokens.1 in this address has an invalid value"),
        ("stop=a&stop=b&stop=c&stop=d&stop=e", "stop in this address has an invalid value"),
        ("mode=sing", "mode in this address has an invalid value"),
        ("system=" + "x" * 33_000, "system in this address has an invalid value"),
    ],
)
def test_wrong_address_is_explained(client: TestClient, query: str, message: str) -> None:
    answer = client.get(f"/playground?{query}")

    assert answer.status_code == 422
    assert message in parse_page(answer.text).text


@pytest.mark.usefixtures("run")
def test_column_that_cannot_answer_says_why(client: TestClient) -> None:
    page = parse_page(client.get(address(model=["run:9", "run:1:4", "run:1", "model:1"])).text)
    notes = [head.all("p", class_="note") for head in column_heads(page)]

    assert "Run 9 does not exist. It may have been deleted." in notes[0][0].text
    assert "The checkpoint of step 4 was not kept." in notes[1][0].text
    assert notes[2:] == [[], []]
    refused = client.get(address(model="run:1", **{"format.1": "int2"})).text
    assert "There is no number format int2." in refused


def test_playground_without_models_offers_to_add_one(
    client: TestClient, settings: Settings
) -> None:
    shutil.rmtree(settings.models)
    page = client.get("/playground").text

    assert "No model can answer yet" in page
    assert "data-composer" not in page


@pytest.mark.usefixtures("run")
def test_list_offers_what_can_answer_and_explains_the_rest(
    client: TestClient, engine: Engine
) -> None:
    with unit_of_work(engine) as db:
        factories.make_running(db, "night run")
        factories.make_finished_run(db, "scores").recipe = factories.make_recipe(method="reward")
    listed = parse_page(client.get("/playground/models").text)
    offered = [button.attributes["data-pick"] for button in listed.all("button")]
    found = parse_page(client.get("/playground/models?q=PLURAL").text)

    assert offered == ["model:1", "run:1", "run:1:5"]
    assert "This run has no model yet." in listed.text
    assert "The model of this run reads text and writes none." in listed.text
    assert [one.attributes["data-pick"] for one in found.all("button")] == ["run:1", "run:1:5"]
    assert "No model has this name." in client.get("/playground/models?q=zzz").text


@pytest.mark.usefixtures("run")
def test_column_is_loaded_by_itself(client: TestClient) -> None:
    head = parse_page(client.get("/playground/column?model=run:1:5&key=c7").text).one("section")

    assert (head.attributes["data-column"], head.attributes["data-model"]) == ("c7", "run:1:5")
    assert "step 5" in head.text
    assert "4-bit (NF4): needs the package bitsandbytes, which is not installed" in head.text
    assert client.get("/playground/column?model=run:1&key=x").status_code == 422
    assert client.get("/playground/column?model=x&key=c1").status_code == 422


@pytest.mark.usefixtures("run")
def test_runs_with_same_validation_rows_share_their_prompts(
    client: TestClient, engine: Engine, settings: Settings, base: Path
) -> None:
    with unit_of_work(engine) as db:
        write_files(settings, factories.make_finished_run(db, "same rows"), base)
        seed = {"optimisation": {"seed": 7}}
        write_files(settings, factories.make_finished_run(db, "other rows", **seed), base)
    names = [("model", f"run:{number}") for number in (1, 2, 3)]
    page = parse_page(client.get(f"/playground/prompts?{urlencode(names)}").text)
    titles = [group.one("p").text for group in page.all("div", class_="chat-prompts")]

    assert titles == [
        "Validation rows that plurals #1, same rows #2 did not train on:",
        "Validation rows that other rows #3 did not train on:",
    ]


@pytest.mark.usefixtures("run")
def test_each_column_asks_its_model(client: TestClient, settings: Settings, base: Path) -> None:
    def reply(request: GenerationRequest) -> Iterable[GenerationChunk]:
        return words("tuned" if request.adapter else "base")

    with inference_services.run_inference_service(settings, reply) as service:
        told = {
            model: ask(client, model, **more)[-1]["source"]
            for model, more in (
                ("model:1", {"format": "bfloat16", "top_p": 0.5, "temperature": 1}),
                ("run:1:5", {"stop": ["."], "max_tokens": 3}),
                ("base:1", {}),
            )
        }

    rounded, tuned, untuned = service.requests
    assert (rounded.model, rounded.adapter, rounded.base_dtype) == (str(base), "", "bfloat16")
    assert (rounded.top_p, rounded.seed) == (0.5, told["model:1"]["seed"])
    assert tuned.weights.endswith("checkpoint-5")
    assert (tuned.stop, tuned.most) == (["."], 3)
    assert (untuned.model, untuned.adapter, untuned.ids) == (str(base), "", tuned.ids)
    assert told["model:1"]["rounded_to"] == "bfloat16"
    assert (told["run:1:5"]["run"], told["run:1:5"]["step"]) == (1, 5)
    assert (told["base:1"]["base"], told["base:1"]["run"]) == ("starter", None)


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        ("run:9", {}, "Run 9 does not exist."),
        ("nothing", {}, "'nothing' names no model."),
        ("run:1", {"format": "int2"}, "There is no number format int2."),
        ("run:1", {"messages": [{"role": "user", "content": " "}]}, "The prompt is empty."),
    ],
)
def test_question_that_cannot_be_asked_is_explained(
    client: TestClient, model: str, changes: dict[str, Any], message: str
) -> None:
    (event,) = ask(client, model, **changes)

    assert event["error"]["message"] == message


@pytest.mark.usefixtures("run")
def test_answer_waits_for_training_run(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    replies = iter([[NO_SLOT], words("Now.")])
    with unit_of_work(engine) as db:
        factories.make_running(db, "night run")
    with inference_services.run_inference_service(settings, lambda _request: next(replies)):
        first, *_rest = ask(client, "run:1")
    waiting = client.get("/playground/wait").text

    assert first["link"] == {"href": "/runs/2", "title": "night run #2"}
    assert "A run is training on the only slot." in waiting
    assert 'hx-get="/playground/wait"' in waiting


def code(client: TestClient, model: str, **changes: Any) -> Node:  # noqa: ANN401 -- any field of the request
    body = {"model": model, "messages": QUESTION, "temperature": 0.5, "seed": 3} | changes
    answer = client.post("/playground/code", json=body)
    assert answer.status_code == 200, answer.text
    return parse_page(answer.text)


@pytest.mark.usefixtures("run")
def test_code_asks_same_question_by_name(client: TestClient, tmp_path: Path) -> None:
    page = code(client, "run:1:5", stop=["."])
    curl, python = (raw_text(page.one(id=f"question-as-{name}")) for name in ("curl", "openai"))
    fake = tmp_path / "curl"
    fake.write_text("#!/bin/sh\necho $2 >&2\ncat\n")
    fake.chmod(0o755)
    ran = subprocess.run(
        ["/bin/sh", "-c", curl],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert json.loads(ran.stdout) == {
        "model": "ft:starter:local::1:ckpt-step-5",
        "messages": QUESTION,
        "temperature": 0.5,
        "top_p": 1,
        "max_tokens": 256,
        "stop": ["."],
        "seed": 3,
    }
    assert ran.stderr.strip().endswith("/v1/chat/completions")
    compile(python, "code", "exec")
    assert "client.chat.completions.create(" in python
    assert "'ft:starter:local::1:ckpt-step-5'" in python


@pytest.mark.usefixtures("run")
def test_code_says_where_the_api_differs(
    client: TestClient, engine: Engine, settings: Settings, base: Path
) -> None:
    with unit_of_work(engine) as db:
        write_files(settings, factories.make_running(db), base, 7)

    assert "its answers may differ" in code(client, "run:1", format="bfloat16").text
    assert "may differ" not in code(client, "run:1").text
    assert "models of runs that have succeeded" in code(client, "run:2:7").text
    assert "Run 9 does not exist." in code(client, "run:9").text
    text = code(client, "model:1", is_text=True).one(id="question-as-curl").text
    assert "/v1/completions" in text
    assert '"prompt": "What is 3 and one?"' in text


@pytest.mark.usefixtures("run")
def test_pages_of_runs_link_to_playground(
    client: TestClient, engine: Engine, settings: Settings, base: Path
) -> None:
    with unit_of_work(engine) as db:
        write_files(settings, factories.make_finished_run(db), base).artifacts.mkdir()
        factories.make_finished_run(db, "scores").recipe = factories.make_recipe(method="reward")
        factories.make_running(db)

    def links(path: str) -> set[str]:
        page = parse_page(client.get(path).text)
        found = {link.attributes.get("href", "") for link in page.all("a")}
        return {link for link in found if link.startswith("/playground?")}

    assert links("/runs/1") == {"/playground?model=base:1&model=run:1"}
    assert links("/runs/1/chat") == {"/playground?model=base:1&model=run:1"}
    assert links("/runs/1/chat?checkpoint=5") == {"/playground?model=base:1&model=run:1:5"}
    assert links("/compare?runs=1,2,3") == {"/playground?model=run:1&model=run:2"}
    assert links("/runs/3") == links("/runs/4") == set()  # It gives scores; it has no model yet.
