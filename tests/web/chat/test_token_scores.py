"""The probabilities of an answer's tokens, drawn below it."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from studio.protocols.inference_service import (
    GenerationChunk,
    GenerationEnd,
    GenerationRequest,
    ScoredText,
    TokenScore,
)
from studio.settings import Settings
from tests.support import inference_services
from tests.support.page_reader import parse_page
from tests.web.chat.test_chat import QUESTION

SCORES = "/runs/1/chat/scores"


def token(text: str, logprob: float, *others: tuple[str, float]) -> TokenScore:
    top = [
        ScoredText(text=other, bytes=[*other.encode()], logprob=value) for other, value in others
    ]
    return TokenScore(id=1, text=text, bytes=[*text.encode()], logprob=logprob, top=top)


def scored(request: GenerationRequest) -> Iterator[GenerationChunk]:
    """Answer as the service does that is asked to score the last tokens of a prompt."""
    assert (request.most, request.top_logprobs) == (0, 5)
    assert request.scored_from is not None
    assert 0 < request.scored_from < len(request.ids)
    yield GenerationChunk(started=True)
    tokens = [token("Four", -0.1, ("Four", -0.1), (" <b>", -2.5)), token(" & no", -6.0)]
    yield GenerationChunk(text="Four & no", tokens=tokens)
    yield GenerationChunk(end=GenerationEnd(reason="length", tokens=0, computed_in="float32"))


def ask(client: TestClient, settings: Settings, **changes: Any) -> Any:  # noqa: ANN401 -- the page
    body = {"side": "run", "messages": QUESTION, "answer": "Four & no"} | changes
    with inference_services.run_inference_service(settings, scored) as service:
        answer = client.post(SCORES, json=body)
    assert answer.status_code == 200, answer.text
    return parse_page(answer.text), service.requests


@pytest.mark.usefixtures("run")
def test_tokens_are_marked_by_their_probability(client: TestClient, settings: Settings) -> None:
    page, requests = ask(client, settings)
    spans = page.one("p", **{"class": "words heat"}).all("span")

    assert [(span.text, span.attributes["data-mark"]) for span in spans] == [
        ("Four", "0"),
        ("& no", "4"),
    ]
    assert spans[0].attributes["title"] == "90.5 % ·  <b> 8.21 %"
    assert "Mean surprise 3.05 nats per token. Least likely: “ & no”, 0.248 %." in page.text
    assert len(requests) == 1
    assert requests[0].adapter


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("expected", "count"), [("Five", 2), ("Four & no", 1), ("", 1)])
def test_expected_answer_is_scored_too_unless_it_is_the_answer(
    client: TestClient, settings: Settings, expected: str, count: int
) -> None:
    page, requests = ask(client, settings, expected=expected, side="base")

    assert len(page.all("p", **{"class": "words heat"})) == len(requests) == count
    assert requests[0].adapter == ""


@pytest.mark.usefixtures("run")
def test_text_that_is_continued_is_not_scored(client: TestClient, settings: Settings) -> None:
    page, requests = ask(client, settings, is_text=True)

    assert "Only answers of conversations are scored." in page.text
    assert requests == []


@pytest.mark.usefixtures("run")
def test_trouble_is_told_below_the_answer(client: TestClient, settings: Settings) -> None:
    body = {"side": "run", "messages": QUESTION, "answer": "Four"}
    with inference_services.run_inference_service(
        settings, lambda _request: [inference_services.NO_SLOT]
    ):
        answer = client.post(SCORES, json=body)

    assert "No slot is free. Wait." in parse_page(answer.text).text


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("changes", [{"answer": ""}, {"side": "other"}, {"messages": []}])
def test_invalid_request_is_refused(client: TestClient, changes: dict[str, Any]) -> None:
    body = {"side": "run", "messages": QUESTION, "answer": "Four"} | changes

    assert client.post(SCORES, json=body).status_code == 422
