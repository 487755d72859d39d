"""Chat with a run's model beside its base: the page, the streamed answers, and what goes wrong."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.protocols.run_dir import JobSpec, RunDir
from studio.services.models import models
from studio.services.runs import bulk_actions, runs, states
from studio.settings import Settings
from studio.training.data.rows import TrainingRow, split_rows
from tests.support import factories, inference_services, tokenizer_services
from tests.support.inference_services import LOADING, NO_SLOT, failed, words
from tests.support.page_reader import parse_page
from tests.web.chat.conftest import write_files
from tests.web.openai.test_images import write_llava

QUESTION = [{"role": "user", "content": "What is 3 and one?"}]
ANSWERS = "/runs/1/chat/answers"


def ask(client: TestClient, side: str = "run", **changes: Any) -> list[dict[str, Any]]:  # noqa: ANN401 -- any field of the request
    """Ask a model, and return the events of its answer."""
    body = {"side": side, "messages": QUESTION} | changes
    answer = client.post(ANSWERS, json=body)
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    return [json.loads(line[5:]) for line in lines if line.startswith("data:")]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(event.get("text", "") for event in events)


@pytest.mark.usefixtures("run")
def test_page_offers_held_out_rows_as_prompts(client: TestClient) -> None:
    page = parse_page(client.get("/runs/1/chat").text)
    offered = [json.loads(button.attributes["data-row"]) for button in page.all(class_="chat-try")]
    rows = [TrainingRow(messages=row["messages"]) for row in factories.ROWS]
    _trained, held_out = split_rows(rows, 0.05, 42)

    assert [row["messages"] for row in offered] == [list(row.messages[:1]) for row in held_out]
    assert [row["expected"] for row in offered] == [row.messages[1]["content"] for row in held_out]


@pytest.mark.usefixtures("run")
def test_answers_can_be_rated_compared_and_edited(client: TestClient) -> None:
    page = parse_page(client.get("/runs/1/chat").text)

    bars = page.all(role="group", **{"aria-label": "Feedback on this answer"})
    names = [one.attributes.get("aria-label") or one.text.strip() for one in bars[0].all("button")]
    assert names == ["Good answer", "Bad answer", "Better", "Edit answer"]


@pytest.mark.usefixtures("run")
def test_answers_stream_from_base_and_tuned_model(
    client: TestClient, settings: Settings, base: Path
) -> None:
    def reply(request: GenerationRequest) -> Iterable[GenerationChunk]:
        return [LOADING, *words("4", ".")] if request.adapter else words("So.")

    with inference_services.run_inference_service(settings, reply) as service:
        tuned = ask(client, expected="4.", max_tokens=9, seed=7)
        untuned = ask(client, "base", expected="4.")

    states_seen = [event["state"] for event in tuned if "state" in event]
    assert states_seen == ["starting", "loading", "answering"]
    assert text_of(tuned) == "4."
    assert (tuned[-1]["end"]["is_right"], tuned[-1]["end"]["tokens"]) == (True, 2)
    assert (text_of(untuned), untuned[-1]["end"]["is_right"]) == ("So.", False)
    first, second = service.requests
    assert (first.model, first.adapter) == (str(base), str(settings.runs / "1" / "artifacts"))
    assert (second.model, second.adapter) == (str(base), "")
    assert first.ids == second.ids  # the same prompt, by the same template
    assert (first.most, first.temperature, first.seed) == (9, 0, 7)


@pytest.mark.usefixtures("run")
def test_answer_cut_by_max_tokens_is_marked(client: TestClient, settings: Settings) -> None:
    with inference_services.run_inference_service(
        settings, lambda _request: words("a", "b", is_cut=True)
    ):
        end = ask(client)[-1]["end"]

    assert (end["is_cut"], end["is_right"], end["computed_in"]) == (True, None, "float32")


@pytest.mark.usefixtures("run")
def test_answer_says_what_gave_it(client: TestClient, settings: Settings) -> None:
    with inference_services.run_inference_service(settings, lambda _request: words("x")) as service:
        greedy = ask(client)[-1]["source"]
        drawn = ask(client, checkpoint=5, temperature=1, top_p=0.9, stop=["."])[-1]["source"]
        base = ask(client, "base", temperature=1, seed=3)[-1]["source"]

    assert greedy | {"template": ""} == {
        "name": "ft:starter:local::1",
        "base": "starter",
        "run": 1,
        "is_adapter": True,
        "step": None,
        "rounded_to": "",
        "computed_in": "float32",
        "template": "",
        "seed": None,
    }
    assert (drawn["step"], drawn["template"]) == (5, greedy["template"])
    assert len(greedy["template"]) == 8
    assert (base["name"], base["run"], base["is_adapter"]) == ("starter", None, False)
    assert base["seed"] == 3
    request = service.requests[1]
    assert (request.top_p, request.stop, request.seed) == (0.9, ["."], drawn["seed"])


@pytest.mark.usefixtures("run")
def test_answer_that_was_cut_is_continued(client: TestClient, settings: Settings) -> None:
    with inference_services.run_inference_service(
        settings, lambda _request: words(" and", " four.")
    ) as service:
        ask(client)
        events = ask(client, answer_start="Three", expected="Three and four.")
        ask(client, answer_start=" upon", is_text=True)

    first, second, text = service.requests
    assert second.ids[: len(first.ids)] == first.ids
    assert len(second.ids) == len(first.ids) + len("Three")  # a token per byte
    assert not second.is_turn  # The space between both parts stays.
    assert len(text.ids) == len(QUESTION[0]["content"] + " upon")
    assert text_of(events) == " and four."
    assert events[-1]["end"]["is_right"] is True


@pytest.mark.usefixtures("run")
def test_checkpoint_answers_with_its_weights(client: TestClient, settings: Settings) -> None:
    with inference_services.run_inference_service(settings, lambda _request: words("x")) as service:
        ask(client, checkpoint=5)
        gone = ask(client, checkpoint=4)

    (request,) = service.requests
    assert request.weights.endswith("runs/1/checkpoints/checkpoint-5")
    assert request.adapter.endswith("runs/1/artifacts")
    assert request.name == "ft:starter:local::1:ckpt-step-5"
    assert gone == [
        {
            "error": {
                "message": "The checkpoint of step 4 was not kept.",
                "hint": "Choose another one: older checkpoints are deleted.",
            }
        }
    ]


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_checkpoint_of_paused_run_answers(
    client: TestClient, engine: Engine, settings: Settings, base: Path, kind: str
) -> None:
    with unit_of_work(engine) as db:
        factories.connect_worker(db, "plain")
        paused = factories.make_running(db, adapter={"kind": kind})
        write_files(settings, paused, base, 5, 7)
        states.move(db, paused, RunStatus.STOPPING)
        states.move(db, paused, RunStatus.PAUSED)

    with inference_services.run_inference_service(settings, lambda _request: words("x")) as service:
        assert text_of(ask(client)) == "x"

    (request,) = service.requests
    assert (request.model, request.adapter) == (str(base), "")
    assert request.weights.endswith("checkpoint-7")
    assert request.lora.get("r") == (16 if kind == "lora" else None)
    page = parse_page(client.get("/runs/1/chat").text)
    assert [option.attributes["value"] for option in page.all("option")] == ["7", "5"]


def test_quantised_base_answers_in_format_of_training(
    client: TestClient, engine: Engine, settings: Settings, base: Path
) -> None:
    with unit_of_work(engine) as db:
        factories.connect_worker(db, "plain")
        quantised = factories.make_finished_run(
            db, adapter={"kind": "lora", "base_dtype": "float16"}
        )
        write_files(settings, quantised, base).artifacts.mkdir()

    with inference_services.run_inference_service(settings, lambda _request: words("x")) as service:
        ask(client, "base")

    assert (service.requests[0].base_dtype, service.requests[0].precision) == ("float16", "bf16")


@pytest.mark.usefixtures("run")
def test_chat_waits_for_training_run_and_then_answers(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    replies = iter([[NO_SLOT], [NO_SLOT], words("Now.")])
    with unit_of_work(engine) as db:
        trains = factories.make_running(db, "night run")
        assert trains.id == 2
    with inference_services.run_inference_service(settings, lambda _request: next(replies)):
        events = ask(client)

    (waiting,) = [event for event in events if event.get("state") == "waiting"]
    message = "A run is training on the only slot. Chat starts when it ends"
    assert waiting["message"].startswith(message)
    assert waiting["link"] == {"href": "/runs/2", "title": "night run #2"}
    assert text_of(events) == "Now."


@pytest.mark.usefixtures("run")
def test_page_says_what_it_waits_for_until_slot_is_free(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_running(db, "night run")
    waiting = client.get("/runs/1/chat").text
    assert "A run is training on the only slot." in waiting
    assert 'href="/runs/2"' in waiting
    assert 'hx-trigger="every 5s"' in waiting
    assert "data-is-free" not in waiting

    with unit_of_work(engine) as db:
        states.move(db, runs.get(db, 2), RunStatus.SUCCEEDED)
    block = client.get("/runs/1/chat/wait").text
    assert "hx-get" not in block
    assert "data-is-free" in client.get("/runs/1/chat").text


@pytest.mark.usefixtures("run")
def test_queued_runs_train_before_chat(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_running(db)
        factories.make_run(db)

    assert "Runs in the queue train first: 1." in client.get("/runs/1/chat/wait").text


def test_missing_worker_is_named(
    client: TestClient, engine: Engine, settings: Settings, base: Path
) -> None:
    with unit_of_work(engine) as db:
        write_files(settings, factories.make_finished_run(db), base).artifacts.mkdir()

    (event,) = ask(client)
    assert event["error"]["message"] == "No worker is running, so no model can answer."
    assert "No worker is running" in client.get("/runs/1/chat").text


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("out_of_memory", "The machine ran out of memory."),
        ("invalid", "The prompt has 9,000 tokens; this model's context is 512."),
    ],
)
def test_failure_of_model_is_shown_with_hint(
    client: TestClient, settings: Settings, code: str, message: str
) -> None:
    with inference_services.run_inference_service(
        settings, lambda _request: failed(code, message, "Shorten the messages.")
    ):
        *_states, event = ask(client)

    assert event == {"error": {"message": message, "hint": "Shorten the messages."}}


@pytest.mark.usefixtures("run")
def test_service_that_stops_in_answer_is_error_after_its_text(
    client: TestClient, settings: Settings
) -> None:
    with inference_services.run_inference_service(
        settings, lambda _request: words("Half", " way")[:2]
    ):
        events = ask(client)

    assert text_of(events) == "Half"
    assert events[-1]["error"]["message"] == "The model stopped in the middle of its answer."


@pytest.mark.usefixtures("run")
def test_base_without_chat_template_is_explained(
    client: TestClient, settings: Settings, tokenizer_home: Path
) -> None:
    job = settings.runs / "1" / "job.json"
    spec = json.loads(job.read_text()) | {"model": str(tokenizer_home / "plain")}
    job.write_text(json.dumps(spec))
    (event,) = ask(client, "base")

    assert "has no chat template" in event["error"]["message"]


@pytest.mark.usefixtures("run")
def test_deleted_base_model_is_named(client: TestClient, settings: Settings) -> None:
    job = settings.runs / "1" / "job.json"
    job.write_text(json.dumps(json.loads(job.read_text()) | {"model": "/nowhere/at/all"}))
    (event,) = ask(client, "base")

    assert event["error"]["message"] == "The base model's files are missing: starter."


def test_run_without_model_says_why(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        factories.make_running(db)
        ended = factories.make_running(db)
        states.move(db, ended, RunStatus.FAILED)
        bulk_actions.move_to_trash(db, [factories.make_finished_run(db).id or 0])
        factories.make_finished_run(db)

    reasons = {
        1: "This run has no model yet.",
        2: "This run ended before it saved a model.",
        3: "This run is in the trash.",
        4: "The files of this run have been deleted.",
    }
    for number, reason in reasons.items():
        page = client.get(f"/runs/{number}/chat")
        assert (page.status_code, reason in page.text) == (200, True), number
        assert "data-composer" not in page.text


@pytest.mark.usefixtures("run")
def test_unknown_run_and_checkpoint_are_not_found(client: TestClient) -> None:
    body = {"side": "run", "messages": QUESTION}

    assert client.get("/runs/99/chat").status_code == 404
    assert client.post("/runs/99/chat/answers", json=body).status_code == 404
    assert client.get("/runs/1/chat?checkpoint=4").status_code == 404


@pytest.mark.usefixtures("run")
def test_empty_prompt_is_rejected(client: TestClient) -> None:
    (event,) = ask(client, messages=[{"role": "user", "content": " "}])

    assert event["error"]["message"] == "The prompt is empty."


@pytest.mark.usefixtures("run")
def test_errors_are_in_language_of_page(client: TestClient) -> None:
    client.cookies.set("language", "zh-Hans")
    (event,) = ask(client, messages=[{"role": "user", "content": " "}])

    assert event["error"]["message"] == "提示为空。"


@pytest.mark.usefixtures("run")
def test_text_is_continued_without_chat_template(client: TestClient, settings: Settings) -> None:
    with inference_services.run_inference_service(
        settings, lambda _request: words(" time")
    ) as service:
        events = ask(client, messages=[{"role": "user", "content": "Once"}], is_text=True)

    (request,) = service.requests
    assert len(request.ids) == len("Once")  # a token per byte, and nothing around it
    assert not request.is_turn
    assert text_of(events) == " time"


@pytest.mark.usefixtures("run")
def test_model_is_loaded_before_first_prompt(client: TestClient, settings: Settings) -> None:
    body = {"side": "run", "messages": QUESTION}
    with inference_services.run_inference_service(
        settings, lambda _request: [LOADING, *words()[1:]]
    ) as service:
        answer = client.post("/runs/1/chat/load", json=body)

    assert (answer.status_code, [one.ids for one in service.requests]) == (204, [[]])
    assert client.post("/runs/1/chat/load", json=body).status_code == 204  # nobody listens now


def test_page_of_trained_model_links_to_chat(
    client: TestClient, engine: Engine, settings: Settings, base: Path
) -> None:
    with unit_of_work(engine) as db:
        trained = factories.make_finished_run(db, adapter={"kind": "full"})
        folder = write_files(settings, trained, base)
        tokenizer_services.write_model(folder.artifacts)
        models.add_from_run(db, trained, folder.artifacts)
        number = models.find_by_name(db, "run-1")
        assert number is not None
        link = f"/models/{number.id}"

    assert 'href="/runs/1/chat"' in client.get(link).text


def test_page_offers_images_to_models_that_see(
    client: TestClient, run: RunDir, tmp_path: Path
) -> None:
    shown = parse_page(client.get("/runs/1/chat").text).one(class_="chat")
    assert "data-sees" not in shown.attributes

    spec = JobSpec.model_validate_json(run.job.read_text())
    folder = str(write_llava(tmp_path / "llava"))
    run.job.write_text(spec.model_copy(update={"model": folder}).model_dump_json())
    shown = parse_page(client.get("/runs/1/chat").text).one(class_="chat")
    assert "data-sees" in shown.attributes
    assert shown.one("button", **{"data-attach": ""}).text == "Attach images"


def test_model_of_text_refuses_images_in_its_place(client: TestClient, run: RunDir) -> None:
    assert run.artifacts.is_dir()
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    *_before, last = ask(client, messages=[{"role": "user", "content": [image]}])

    assert "reads text only" in last["error"]["message"]
