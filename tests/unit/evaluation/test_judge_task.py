"""The task in which a judge behind an address is asked: in both orders, with what goes wrong."""

import json
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError, StudioError, UnavailableError
from studio.protocols.endpoint_client import PARALLEL
from studio.protocols.judging import RESULTS_FILE, EndpointJudge, JudgementJob, Pair, PairResult
from studio.protocols.tasks import TaskDir
from studio.runner.judges.endpoint import Endpoint
from studio.runner.tasks.judge import judge
from tests.fakes.judge_endpoint import Reply, run_judge, said

PAIRS = [
    Pair(position=place, prompt=f"Q{place}?", reference="", base="wrong", tuned=f"good {place}")
    for place in range(10)
]


def prefer_good(request: dict[str, Any]) -> Reply:
    """Prefer the answer that begins with `good`, wherever it stands."""
    question = request["messages"][0]["content"]
    choice = "A" if question.index("good") < question.index("wrong") else "B"
    return said(f"It is right.\nVERDICT: {choice}")


def endpoint(url: str, *, allow_internal: bool = True) -> Endpoint:
    return Endpoint(
        EndpointJudge(url=url, model="m"), "k" * 20, allow_internal=allow_internal, retries=(0, 0)
    )


def ask(folder: Path, url: str, pairs: list[Pair], monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401 -- the task's result
    monkeypatch.setenv("STUDIO_ALLOW_INTERNAL_ADDRESSES", "true")
    monkeypatch.setenv("STUDIO_JUDGE_KEY", "k" * 20)
    task = TaskDir(folder)
    task.files.mkdir(parents=True, exist_ok=True)
    job = JudgementJob(
        about="run 1", judgement=1, judge=EndpointJudge(url=url, model="m"), pairs=pairs
    )
    shares: list[float | None] = []
    result = judge(task, job.model_dump(mode="json"), lambda _phase, share: shares.append(share))
    assert shares == sorted(shares, key=lambda share: share or 0)
    assert shares[-1] == 1
    return result["pairs"]


def test_both_orders_are_asked_and_the_key_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_judge(prefer_good) as made:
        results = ask(tmp_path, made.url, PAIRS, monkeypatch)

    assert [one["position"] for one in results] == list(range(10))
    assert {(one["base_first"], one["tuned_first"]) for one in results} == {("B", "A")}
    assert len(made.asked) == 20
    assert set(made.keys) == {f"Bearer {'k' * 20}"}
    assert {one["model"] for one in made.asked} == {"m"}
    assert {one["temperature"] for one in made.asked} == {0}
    assert made.most_at_once <= PARALLEL


def test_equal_answers_are_ties_and_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    equal = Pair(position=0, prompt="Q?", reference="", base="same", tuned="same")
    with run_judge(prefer_good) as made:
        (result,) = ask(tmp_path, made.url, [equal], monkeypatch)

    assert (result["base_first"], result["tuned_first"], made.asked) == ("tie", "tie", [])


def test_further_attempt_continues_after_what_was_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill cut off the last line; the pair before it is not asked again."""
    done = PairResult(
        position=0, base_first="A", tuned_first="B", base_first_reply="x", tuned_first_reply="y"
    )
    files = TaskDir(tmp_path).files
    files.mkdir(parents=True)
    (files / RESULTS_FILE).write_text(f'{done.model_dump_json()}\n{{"position": 1, "base_')
    with run_judge(prefer_good) as made:
        results = ask(tmp_path, made.url, PAIRS[:2], monkeypatch)

    assert len(made.asked) == 2
    assert [one["base_first"] for one in results] == ["A", "B"]
    assert len((files / RESULTS_FILE).read_text().splitlines()) == 2


def test_what_may_pass_is_tried_again() -> None:
    replies: list[Reply] = [(429, {}), (503, {}), said("VERDICT: A")]
    with run_judge(lambda _request: replies.pop(0)) as made:
        assert endpoint(made.url).ask("?") == "VERDICT: A"


@pytest.mark.parametrize(
    ("refusal", "left_out", "added"),
    [
        ("Use 'max_completion_tokens' instead.", "max_tokens", "max_completion_tokens"),
        ("Unsupported value: 'temperature' does not support 0.", "temperature", "max_tokens"),
    ],
)
def test_options_that_a_model_refuses_are_changed_once(
    refusal: str, left_out: str, added: str
) -> None:
    def reply(request: dict[str, Any]) -> Reply:
        is_refused = left_out in request
        return (400, {"error": {"message": refusal}}) if is_refused else said("VERDICT: A")

    with run_judge(reply) as made:
        judge_there = endpoint(made.url)
        assert [judge_there.ask("?"), judge_there.ask("?")] == ["VERDICT: A"] * 2

    assert len(made.asked) == 3
    assert added in made.asked[-1]


def test_model_that_refuses_both_options_answers_every_question_asked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasoning models refuse both; the questions under way meanwhile are asked again, too."""

    def reply(request: dict[str, Any]) -> Reply:
        if "max_tokens" in request:
            return 400, {"error": {"message": "Use 'max_completion_tokens' instead."}}
        if "temperature" in request:
            return 400, {"error": {"message": "'temperature' does not support 0."}}
        return prefer_good(request)

    with run_judge(reply) as made:
        results = ask(tmp_path, made.url, PAIRS, monkeypatch)

    assert {(one["base_first"], one["tuned_first"]) for one in results} == {("B", "A")}


@pytest.mark.parametrize(
    ("reply", "kind", "message"),
    [
        ((401, {"error": {"message": "Bad key."}}), InvalidError, "status 401: Bad key."),
        ((404, b"no such page"), InvalidError, "status 404: no such page"),
        ((200, b"<html>"), InvalidError, "not that of a chat completion"),
        ((200, {"choices": []}), InvalidError, "not that of a chat completion"),
        ((200, json.dumps({"choices": "x" * 2**20}).encode()), InvalidError, "too long"),
        ((500, {}), UnavailableError, "status 500"),
    ],
)
def test_failures_are_explained(reply: Reply, kind: type[StudioError], message: str) -> None:
    with run_judge(lambda _request: reply) as made, pytest.raises(kind) as failed:
        endpoint(made.url).ask("?")

    assert message in failed.value.message
    assert failed.value.hint


@pytest.mark.parametrize("status", [400, 413, 422])
def test_question_that_is_refused_has_no_verdict_and_stops_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    def reply(request: dict[str, Any]) -> Reply:
        is_third = "Q2?" in request["messages"][0]["content"]
        return (status, {"error": {"message": "Too long."}}) if is_third else prefer_good(request)

    with run_judge(reply) as made:
        results = ask(tmp_path, made.url, PAIRS[:4], monkeypatch)

    assert [one["base_first"] for one in results] == ["B", "B", "", "B"]
    assert results[2]["base_first_reply"] == f"Refused with status {status}: Too long."


def test_reply_without_text_is_unreadable() -> None:
    reply = (200, {"choices": [{"message": {"content": None}}]})
    with run_judge(lambda _request: reply) as made:
        assert endpoint(made.url).ask("?") == ""


def test_internal_address_is_refused_unless_the_operator_allows_it() -> None:
    with run_judge(prefer_good) as made, pytest.raises(InvalidError, match="internal address"):
        endpoint(made.url, allow_internal=False).ask("?")
    assert made.asked == []
