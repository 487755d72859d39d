"""Models behind addresses as judges of graders."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from pydantic import SecretStr

from studio.errors import InvalidError, NotFoundError, StudioError, UnavailableError
from studio.graders.grading import Grading
from studio.graders.model_questions import ModelQuestion, ModelReply, build_question
from studio.graders.schema import Grader, parse_grader
from studio.graders.templates import Sample
from studio.protocols import grader_judges
from studio.protocols.chat_endpoints import ChatEndpoint
from studio.protocols.endpoint_client import PARALLEL
from studio.protocols.grader_judges import EndpointJudges, ask_models, asking_ahead
from studio.settings import Settings
from tests.fakes.judge_endpoint import JudgeEndpoint, Reply, run_judge, said

KEY = "k" * 20
ITEM = {"answer": "Paris"}


def judge_grader(model: str = "endpoint:large", **more: object) -> Grader:
    return parse_grader(
        {
            "name": "judge",
            "type": "score_model",
            "model": model,
            "input": [{"role": "user", "content": "{{ item.answer }}: {{ sample.output_text }}"}],
            **more,
        }
    )


def judges(made: JudgeEndpoint) -> EndpointJudges:
    endpoint = ChatEndpoint(name="large", url=made.url, model="m", key=SecretStr(KEY))
    return EndpointJudges([endpoint], allow_internal=True, retries=(0, 0))


def score(result: object) -> Reply:
    status, content = said(json.dumps({"result": result}))
    return status, content | {"usage": {"total_tokens": 12}}


def grade(made: JudgeEndpoint, grader: Grader | None = None, answer: str = "Paris") -> Any:  # noqa: ANN401 -- a grade
    ask = ask_models(judges(made))
    with Grading(grader or judge_grader(), "off", ask_model=ask) as grading:
        return grading.grade(Sample(answer), ITEM)


def test_endpoint_is_asked_for_json_with_its_key() -> None:
    with run_judge(lambda _request: score(0.75)) as made:
        graded = grade(made, judge_grader(sampling_params={"seed": 5}))

    assert (graded.reward, graded.model, graded.tokens) == (0.75, "endpoint:large", 12)
    (request,) = made.asked
    assert made.keys == [f"Bearer {KEY}"]
    assert request["messages"] == [{"role": "user", "content": "Paris: Paris"}]
    assert (request["model"], request["seed"]) == ("m", 5)
    schema = request["response_format"]["json_schema"]["schema"]
    assert schema["properties"]["result"] == {"type": "number", "minimum": 0, "maximum": 1}


def test_endpoint_that_knows_no_schema_is_asked_without_one() -> None:
    def reply(request: dict[str, Any]) -> Reply:
        if "response_format" in request:
            return 400, {"error": {"message": "response_format is not supported"}}
        return said('Sure!\n```json\n{"result": 0.5}\n```')

    with run_judge(reply) as made:
        assert grade(made).reward == 0.5


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((401, {"error": {"message": "Bad key."}}), "status 401: Bad key."),
        ((413, {"error": {"message": "Too long."}}), "Refused with status 413: Too long."),
        ((500, {}), "status 500"),
    ],
)
def test_endpoint_that_fails_gives_no_score_and_says_why(reply: Reply, message: str) -> None:
    with run_judge(lambda _request: reply) as made:
        graded = grade(made)

    assert (graded.reward, graded.errors.flags) == (None, ["model_grader_server_error"])
    assert message in graded.messages[0]
    assert KEY not in str(graded)


def test_unknown_endpoint_is_refused_with_those_there_are() -> None:
    with run_judge(lambda _request: score(1)) as made:
        graded = grade(made, judge_grader("endpoint:small"))

    assert graded.reward is None
    assert "There is no endpoint named small. Use one of these: endpoint:large" in str(graded)


def test_other_models_are_asked_by_the_other_function_or_refused() -> None:
    none = EndpointJudges([], allow_internal=False)
    reply = ModelReply(text='{"result": 1}', model="starter", tokens=1)
    question = _question("starter")

    assert ask_models(none, lambda _question: reply)(question) is reply
    with pytest.raises(UnavailableError, match="starter cannot be asked here"):
        ask_models(none)(question)


def _question(model: str) -> Any:  # noqa: ANN401 -- a question
    (_path, grader), *_ = grader_judges.list_model_graders(judge_grader(model))
    return build_question(grader, Sample(""), ITEM)


def counting(answers: list[str]) -> Callable[[dict[str, Any]], Reply]:
    """Score an answer by its place."""
    return lambda request: score(
        answers.index(request["messages"][0]["content"].partition(": ")[2]) / 10
    )


def test_answers_are_asked_about_ahead_a_few_at_a_time_and_equal_ones_once() -> None:
    answers = [f"answer {number}" for number in range(9)]
    samples: list[tuple[Sample, object]] = [(Sample(one), ITEM) for one in (*answers, answers[0])]
    with run_judge(counting(answers)) as made:
        ask = judges(made).ask
        grader = judge_grader()
        with (
            asking_ahead(grader, samples, ask) as ahead,
            Grading(grader, "off", ask_model=ahead) as grading,
        ):
            rewards = [grading.grade(sample, item).reward for sample, item in samples]

    assert rewards == [*(number / 10 for number in range(9)), 0.0]
    assert len(made.asked) == 9
    assert made.most_at_once <= PARALLEL


def test_question_that_cannot_be_built_is_an_error_of_its_answer() -> None:
    samples: list[tuple[Sample, object]] = [(Sample("a"), {}), (Sample("a"), ITEM)]
    with run_judge(counting(["a"])) as made:
        grader = judge_grader()
        with (
            asking_ahead(grader, samples, judges(made).ask) as ahead,
            Grading(grader, "off", ask_model=ahead) as grading,
        ):
            grades = [grading.grade(sample, item) for sample, item in samples]

    assert [one.reward for one in grades] == [None, 0.0]
    assert grades[0].errors.invalid_variable_error


def test_process_asks_the_endpoints_that_its_secrets_name() -> None:
    with run_judge(lambda _request: score(1)) as made:
        listed = [{"name": "large", "url": made.url, "model": "m", "key": KEY}]
        settings = Settings(
            endpoints=SecretStr(json.dumps(listed)),
            judge_url=made.url,
            judge_model="wise",
            allow_internal_addresses=True,
        )
        known = grader_judges.from_settings(settings)
        assert [known.ask(_question(f"endpoint:{name}")).text for name in ("large", "judge")]

    assert [one["model"] for one in made.asked] == ["m", "wise"]
    with pytest.raises(NotFoundError, match="no endpoint named other"):
        known.require("endpoint:other")


@pytest.mark.parametrize(
    ("model", "run"),
    [("run:17", 17), ("run:0", None), ("run:x", None), ("starter", None), ("endpoint:run:1", None)],
)
def test_reward_models_are_named_by_their_run(model: str, run: int | None) -> None:
    assert grader_judges.reward_run(model) == run


def test_reward_model_gives_no_labels() -> None:
    label = parse_grader(
        {
            "name": "label",
            "type": "label_model",
            "model": "run:17",
            "input": [{"role": "user", "content": "x"}],
            "labels": ["good", "bad"],
            "passing_labels": ["good"],
        }
    )
    ((path, grader),) = grader_judges.list_model_graders(label)
    with pytest.raises(InvalidError, match="gives scores, and no labels"):
        grader_judges.require_reward_type(grader, path)
    ((path, scored),) = grader_judges.list_model_graders(judge_grader("run:17"))
    grader_judges.require_reward_type(scored, path)


@pytest.mark.parametrize(
    ("limits", "score", "counts"),
    [
        (None, 0.0, 0.5),
        (None, 2.0, 0.8807970779778823),
        (None, -2.0, 0.11920292202211755),
        (None, 5000.0, 1.0),
        (None, -5000.0, 0.0),
        ([-10, 10], 2.0, 2.0),
        ([-10, 10], 12.0, 10.0),
        ([0, 1], -2.0, 0.0),
    ],
)
def test_score_of_a_reward_model_is_squashed_or_clipped(
    limits: list[float] | None, score: float, counts: float
) -> None:
    grader = judge_grader("run:17", **({"range": limits} if limits else {}))

    def ask(question: ModelQuestion) -> ModelReply:
        return grader_judges.reward_reply(question, score, tokens=3)

    with Grading(grader, "off", ask_model=ask) as grading:
        graded = grading.grade(Sample("Paris"), ITEM)
    assert graded.reward == pytest.approx(counts)
    assert graded.tokens == 3
    assert (graded.unclipped is not None) == (limits is not None and score != counts)


def test_score_that_is_no_number_is_an_error() -> None:
    def ask(question: ModelQuestion) -> ModelReply:
        return grader_judges.reward_reply(question, float("nan"), tokens=3)

    with Grading(judge_grader("run:17"), "off", ask_model=ask) as grading:
        graded = grading.grade(Sample("Paris"), ITEM)
    assert graded.reward is None
    assert graded.messages


def test_reward_models_are_asked_together_and_once_for_equal_answers() -> None:
    asked: list[Sequence[ModelQuestion]] = []

    def ask_together(questions: Sequence[ModelQuestion]) -> list[ModelReply | StudioError]:
        asked.append(questions)
        known = [grader_judges.reward_reply(one, len(asked), tokens=1) for one in questions]
        return [*known[:-1], InvalidError("This answer cannot be read.")]

    def ask(question: ModelQuestion) -> ModelReply:
        raise AssertionError(question)

    grader = judge_grader("run:17", range=[0, 5])
    answers = [(Sample(text), ITEM) for text in ("Paris", "Oslo", "Paris", "Rome")]
    with (
        asking_ahead(grader, answers, ask, ask_together) as ahead,
        Grading(grader, "off", ask_model=ahead) as grading,
    ):
        grades = [grading.grade(sample, item) for sample, item in answers]

    assert [len(questions) for questions in asked] == [3]
    assert [one.reward for one in grades] == [1.0, 1.0, 1.0, None]
    assert "This answer cannot be read." in grades[-1].messages[0]
