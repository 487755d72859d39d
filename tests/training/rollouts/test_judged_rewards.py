"""Models behind addresses score the answers that a model learns from."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from studio.protocols.events import Failed, Finished
from tests.fakes.judge_endpoint import Reply, run_judge, said
from tests.training import tiny
from tests.training.rollouts.test_reinforcement import SMALL, records

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

KEY = "k" * 20


def judge_grader(model: str = "endpoint:large") -> dict[str, Any]:
    question = {"role": "user", "content": "{{ item.reference_answer }}|{{ sample.output_text }}"}
    return {"type": "score_model", "name": "judge", "model": model, "input": [question]}


def score(answer: str) -> float:
    return round(1 / (1 + len(answer)), 4)


def reply(request: dict[str, Any]) -> Reply:
    answer = request["messages"][-1]["content"].partition("|")[2]
    return said(json.dumps({"result": score(answer)}))


def configure(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    listed = [{"name": "large", "url": url, "model": "m", "key": KEY}]
    monkeypatch.setenv("STUDIO_ENDPOINTS", json.dumps(listed))
    monkeypatch.setenv("STUDIO_ALLOW_INTERNAL_ADDRESSES", "true")


def test_endpoint_scores_answers_several_at_a_time(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_two = threading.Barrier(2, timeout=120)

    def reply_to_two(request: dict[str, Any]) -> Reply:
        if len(judge.asked) <= 2:
            first_two.wait()
        return reply(request)

    with run_judge(reply_to_two) as judge:
        configure(monkeypatch, judge.url)
        settings = {"method": "grpo"} | SMALL | {"reward__grader": judge_grader()}
        run = tiny.train(tmp_path / "run", model, **settings)

    answers = [answer for group in records(run) for answer in group["answers"]]
    assert isinstance(tiny.last_event(run), Finished)
    assert [answer["reward"] for answer in answers] == [score(a["text"]) for a in answers]
    assert judge.most_at_once > 1
    assert set(judge.keys) == {f"Bearer {KEY}"}
    kept = [path for path in run.root.rglob("*") if path.is_file()]
    assert not any(KEY.encode() in path.read_bytes() for path in kept)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("endpoint:small", "There is no endpoint named small"),
        ("run:7", "The reward model run:7 does not work"),
        ("starter", "cannot be asked while another model trains"),
    ],
)
def test_judge_that_cannot_be_asked_is_refused(
    name: str, words: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_judge(reply) as judge:
        configure(monkeypatch, judge.url)
        settings = {"method": "grpo"} | SMALL | {"reward__grader": judge_grader(name)}
        run = tiny.train(tmp_path / "run", model, **settings)

    failed = tiny.last_event(run)
    assert isinstance(failed, Failed)
    assert (failed.code, words in failed.message) == ("conflict", True)
    assert judge.asked == []
