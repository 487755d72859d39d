"""Trials of graders: which rows and answers are graded, and what the grades mean."""

import json
from typing import Any

import pytest
from pydantic import SecretStr
from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tables import DatasetVersion
from studio.db.tasks import Task
from studio.errors import InvalidError, NotFoundError, StudioError
from studio.graders.model_questions import ModelQuestion, ModelReply
from studio.graders.schema import Grader, parse_grader
from studio.protocols import grader_judges
from studio.protocols.grader_trials import GivenAnswer, TrialJob, TrialResult
from studio.protocols.tasks import TASK_DEFINITIONS
from studio.services.graders import trials
from studio.services.graders.trials import Source, TrialRequest
from studio.settings import Settings
from tests.support.factories import ROWS

RIGHT: dict[str, Any] = {
    "name": "right",
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.reference_answer }}",
    "operation": "eq",
}
KEY = "k" * 20
STARTER = TrialRequest(dataset="starter", source="model", model="starter")


def no_model(question: ModelQuestion) -> ModelReply:
    raise AssertionError(question)


def right(**changes: Any) -> Grader:  # noqa: ANN401 -- fields
    return parse_grader(RIGHT | changes)


def grade(db: Session, settings: Settings, grader: Grader, text: str | None = None) -> TrialResult:
    rows = trials.load_rows(db, settings, "starter", 8)
    source: Source = "expected" if text is None else "text"
    asked = TrialRequest(dataset="starter", source=source, text=text or "")
    answers = trials.given_answers(grader, rows, asked)
    return trials.grade(grader, rows, answers, "off", no_model)


def test_rows_are_the_same_each_time_and_spread_over_the_dataset(
    db: Session, settings: Settings
) -> None:
    rows = trials.load_rows(db, settings, "starter", 8)

    numbers = [row.number for row in rows]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 8
    assert max(numbers) > 16
    assert rows == trials.load_rows(db, settings, "starter", 8)
    assert list(rows[0].messages) == ROWS[numbers[0] - 1]["messages"][:1]
    assert len(trials.load_rows(db, settings, "starter", 64)) == len(ROWS)


def test_rows_without_a_prompt_are_passed_over(db: Session, settings: Settings) -> None:
    path = settings.datasets / "1" / "1" / "train.jsonl"
    monologue = {"messages": [{"role": "assistant", "content": "Hm."}]}
    lines = [ROWS[place] if place % 4 == 0 else monologue for place in range(len(ROWS))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert {row.number % 4 for row in trials.load_rows(db, settings, "starter", 4)} == {1}


def test_rows_that_cannot_be_answered_are_refused(db: Session, settings: Settings) -> None:
    path = settings.datasets / "1" / "1" / "train.jsonl"
    path.write_text('{"messages": []}\n' * len(ROWS))
    with pytest.raises(InvalidError, match="No row of starter has a prompt"):
        trials.load_rows(db, settings, "starter", 8)
    path.unlink()
    with pytest.raises(NotFoundError, match="files of this dataset are gone"):
        trials.load_rows(db, settings, "starter", 8)
    db.get_one(DatasetVersion, 1).kind = "text"
    with pytest.raises(InvalidError, match="they are text"):
        trials.load_rows(db, settings, "starter", 8)
    assert trials.list_datasets(db) == []


def test_expected_answers_are_those_the_grader_compares_with(
    db: Session, settings: Settings
) -> None:
    result = grade(db, settings, right())

    assert [row.answers[0].grade.reward for row in result.rows] == [1.0] * 8
    assert trials.judge_result("expected", result).kind == "good"


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"operation": "ne"}, "refused", "No expected answer gets a reward."),
        ({"reference": "{{ item.nothing }}"}, "refused", "No answer could be scored."),
        ({"reference": "0"}, "refused", "No expected answer"),
        ({"reference": "1", "operation": "like"}, "doubtful", "of 8 expected answers do not get"),
        (
            {"reference": "{{ item.messages[9] }}"},
            "refused",
            "No answer could be scored.",
        ),
    ],
)
def test_grader_that_refuses_expected_answers_is_told(
    db: Session, settings: Settings, changes: dict[str, str], kind: str, text: str
) -> None:
    verdict = trials.judge_result("expected", grade(db, settings, right(**changes)))

    assert verdict.kind == kind
    assert text in verdict.text


def test_text_is_graded_on_each_row(db: Session, settings: Settings) -> None:
    result = grade(db, settings, right(reference="7."), "7.")

    assert [row.answers[0].grade.reward for row in result.rows] == [1.0] * 8
    assert trials.judge_result("text", result).kind == "good"


def test_answers_of_a_model_are_judged_as_before_training(db: Session, settings: Settings) -> None:
    rows = trials.load_rows(db, settings, "starter", 2)
    answers = {row.number: [GivenAnswer(text=text) for text in ("x", "y")] for row in rows}

    verdict = trials.judge_result("model", trials.grade(right(), rows, answers, "off", no_model))

    assert verdict.kind == "refused"
    assert "never gets a reward" in verdict.text


def finish(db: Session, task: Task, job: TrialJob, text: str) -> None:
    answers = {row.number: [GivenAnswer(text=text)] for row in job.rows}
    result = trials.grade(job.grader, job.rows, answers, "off", no_model)
    task.status, task.result = TaskStatus.SUCCEEDED, result.model_dump(mode="json")
    db.flush()


def test_answers_are_written_once_for_all_graders(db: Session, settings: Settings) -> None:
    job = trials.plan(db, settings, right(), STARTER)
    assert trials.find_answers(db, job) is None
    task = trials.start(db, job)
    assert trials.start(db, job) is task
    assert trials.get(db, task.id or 0) is task
    assert trials.find_result(task) is None
    finish(db, task, job, "7.")

    other = trials.plan(db, settings, right(operation="ne"), STARTER)
    answers = trials.find_answers(db, other)

    assert answers is not None
    assert {one.text for given in answers.values() for one in given} == {"7."}
    assert trials.find_result(task) is not None
    for changed in (
        TrialRequest(dataset="starter", model="starter", rows=7),
        TrialRequest(dataset="starter", model="starter", answers=2),
        TrialRequest(dataset="starter", model="starter", max_new_tokens=9),
        TrialRequest(dataset="starter", model="starter", chat_template="chatml"),
    ):
        assert trials.find_answers(db, trials.plan(db, settings, right(), changed)) is None


def test_task_gets_keys_only_if_the_grader_asks_an_endpoint(
    db: Session, settings: Settings
) -> None:
    endpoint = {"name": "large", "url": "https://large.example/v1", "model": "m", "key": KEY}
    known = settings.model_copy(update={"endpoints": SecretStr(json.dumps([endpoint]))})

    def plan(model: str) -> dict[str, Any]:
        message = {"role": "user", "content": "?"}
        fields = {"name": "judge", "type": "score_model", "model": model, "input": [message]}
        job = trials.plan(db, known, parse_grader(fields), STARTER)
        params: dict[str, Any] = job.model_dump(mode="json")
        return params

    inside, outside = plan("starter"), plan("endpoint:large")
    definition = TASK_DEFINITIONS[trials.KIND]

    assert (list(inside["judges"]), list(outside["judges"])) == (["starter"], [])
    assert definition.required_secrets(inside) == ()
    assert definition.required_secrets(outside) == grader_judges.SECRETS
    assert KEY not in json.dumps(outside)
    assert "large.example" not in json.dumps(outside)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (TrialRequest(dataset="nothing", model="starter"), "There is no dataset"),
        (TrialRequest(dataset="starter", model="gpt-4o"), "The model gpt-4o does not exist"),
    ],
)
def test_unknown_names_are_refused(
    db: Session, settings: Settings, request_: TrialRequest, message: str
) -> None:
    with pytest.raises(StudioError, match=message):
        trials.plan(db, settings, right(), request_)


def test_other_tasks_are_no_trials(db: Session) -> None:
    task = Task(kind="build", subject="x", params={})
    db.add(task)
    db.flush()
    with pytest.raises(NotFoundError, match="no trial"):
        trials.get(db, task.id or 0)
