"""The task that tries a grader: a model answers rows several times, and its answers are graded."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from studio.intake.row_formats.tasks import to_graded_row
from studio.protocols.grader_trials import ANSWERS_FILE, JudgeSource, TrialJob, TrialResult
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import ModelJudge, RewardJudge
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.try_grader import try_grader
from tests.fakes.judge_endpoint import run_judge, said
from tests.training import tiny
from tests.training.evaluation import test_local_judges

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

reward = test_local_judges.reward

LENGTH = {
    "name": "length",
    "type": "python",
    "source": "def grade(sample, item):\n    return min(len(sample['output_text']) / 100, 1.0)\n",
}
RIGHT = {
    "name": "right",
    "type": "string_check",
    "input": "{{ sample.output_text }}",
    "reference": "{{ item.reference_answer }}",
    "operation": "eq",
}
ROWS = [row for number, one in enumerate(tiny.rows()[:3], 1) if (row := to_graded_row(one, number))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_model(tmp_path_factory.mktemp("tried") / "model", tiny.llama())


def blank(model: Path, **changes: Any) -> GenerationRequest:  # noqa: ANN401 -- fields
    return GenerationRequest(model=str(model), ids=[], stops=[], **changes)


def attempt(folder: Path, model: Path, grader: dict[str, Any], **changes: Any) -> TrialResult:  # noqa: ANN401 -- fields
    fields = {
        "about": "starter on sums",
        "dataset": "sums",
        "answered_by": "",
        "model": blank(model),
        "rows": ROWS,
        "answers": 4,
        "max_new_tokens": 8,
        "grader": grader,
        "source": JudgeSource(kind="studio"),
    }
    job = TrialJob.model_validate(fields | changes)
    task = TaskDir(folder)
    task.files.mkdir(parents=True, exist_ok=True)
    shares: list[float] = []
    result = try_grader(
        task, json.loads(job.model_dump_json()), lambda _phase, share: shares.append(share or 0)
    )
    assert shares == sorted(shares)
    assert shares[-1] == 1
    return TrialResult.model_validate(result)


def texts(result: TrialResult) -> list[list[str]]:
    return [[answer.text for answer in row.answers] for row in result.rows]


def test_each_row_gets_different_answers_the_same_ones_each_time(
    tmp_path: Path, model: Path
) -> None:
    first, second = (attempt(tmp_path / name, model, LENGTH) for name in "ab")

    assert [row.number for row in first.rows] == [1, 2, 3]
    assert texts(first) == texts(second)
    assert len({text for answers in texts(first) for text in answers}) > 9
    for row in first.rows:
        for answer in row.answers:
            assert answer.grade.reward == pytest.approx(min(len(answer.text) / 100, 1.0))
            assert (answer.tokens or 0) <= 8
    assert first.summary.count == 12
    assert first.summary.spread
    assert first.seals


def test_likeliest_answers_are_those_of_a_fresh_process(tmp_path: Path, model: Path) -> None:
    result = attempt(tmp_path, model, RIGHT, temperature=0.0, answers=1)

    plain = AutoModelForCausalLM.from_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    for row in result.rows:
        inputs = tokenizer.apply_chat_template(
            list(row.messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        ids = plain.generate(**inputs, max_new_tokens=8, do_sample=False)[0]
        expected = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        assert row.answers[0].text.strip() == expected.strip()


def test_further_attempt_keeps_the_answers_that_were_written(tmp_path: Path, model: Path) -> None:
    """A kill cut off the last line: that row is answered again, as before."""
    whole = attempt(tmp_path / "whole", model, LENGTH)
    kept = {"number": 1, "answers": [{"text": "Kept."}] * 4}
    files = TaskDir(tmp_path / "killed").files
    files.mkdir(parents=True)
    (files / ANSWERS_FILE).write_text(f'{json.dumps(kept)}\n{{"number": 2, "ans')

    resumed = attempt(tmp_path / "killed", model, LENGTH)

    assert texts(resumed) == [["Kept."] * 4, *texts(whole)[1:]]
    assert len((files / ANSWERS_FILE).read_text().splitlines()) == 3


def score_grader(model: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- fields
    prompt = {"role": "user", "content": "{{ item.messages[-1].content }}"}
    answer = {"role": "assistant", "content": "{{ sample.output_text }}"}
    return {
        "name": "judge",
        "type": "score_model",
        "model": model,
        "input": [prompt, answer],
        **fields,
    }


def test_reward_model_scores_each_answer_as_plain_transformers(
    tmp_path: Path, model: Path, reward: RunDir
) -> None:
    judge = RewardJudge(model=blank(reward.artifacts, gives_scores=True), max_length=128)
    grader = score_grader("run:7", range=[-100, 100])

    result = attempt(tmp_path, model, grader, judges={"run:7": judge}, answers=2)

    plain = AutoModelForSequenceClassification.from_pretrained(reward.artifacts).eval()
    tokenizer = AutoTokenizer.from_pretrained(reward.artifacts)
    for row in result.rows:
        for answer in row.answers:
            turns = [*row.messages, {"role": "assistant", "content": answer.text}]
            inputs = tokenizer.apply_chat_template(turns, return_tensors="pt", return_dict=True)
            with torch.no_grad():
                expected = float(plain(**inputs).logits[0, 0])
            assert answer.grade.reward == pytest.approx(expected, rel=1e-4)


def test_chat_model_of_the_studio_judges_in_json(tmp_path: Path, model: Path) -> None:
    judge = ModelJudge(model=blank(model))
    grader = score_grader("starter", range=[0, 9], sampling_params={"max_completions_tokens": 40})
    asked = {**grader, "input": [*grader["input"], {"role": "developer", "content": "Judge."}]}

    result = attempt(tmp_path, model, asked, judges={"starter": judge}, answers=2, rows=ROWS[:1])

    for answer in result.rows[0].answers:
        assert answer.grade.model == "starter"
        assert answer.grade.reward is None or 0 <= answer.grade.reward <= 9
        assert not answer.grade.errors.model_grader_server_error


def test_endpoint_judges_with_the_key_that_the_process_gets(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with run_judge(lambda _request: said('{"result": 0.5}')) as made:
        listed = [{"name": "large", "url": made.url, "model": "m", "key": "k" * 20}]
        monkeypatch.setenv("STUDIO_ENDPOINTS", json.dumps(listed))
        monkeypatch.setenv("STUDIO_ALLOW_INTERNAL_ADDRESSES", "true")
        grader = score_grader("endpoint:large")
        source = JudgeSource(kind="endpoints")
        result = attempt(tmp_path / "with", model, grader, source=source)
        without = attempt(tmp_path / "without", model, grader)

    assert {one.grade.reward for row in result.rows for one in row.answers} == {0.5}
    assert set(made.keys) == {f"Bearer {'k' * 20}"}
    assert without.summary.errors == 12
    assert "k" * 20 not in result.model_dump_json()
