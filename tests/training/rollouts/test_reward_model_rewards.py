"""A reward model that a run has trained scores the answers of another one while it trains."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from studio.protocols.events import Failed, Finished
from studio.protocols.grader_judges import squash
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import RewardJudge
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe.precision import PRECISIONS
from studio.runner.execution import execute_run
from studio.training import reward_models
from studio.training.data import template_process
from studio.training.precision import matmul_precision
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED
from tests.training.rollouts.test_reinforcement import SMALL, records
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

NAME = "run:7"


def pairs() -> list[Row]:
    """Return pairs of which the answer in lower-case letters is better than that in signs."""
    return [
        {
            "messages": row["messages"][:1],
            "chosen": [{"role": "assistant", "content": word * (1 + number % 3)}],
            "rejected": [{"role": "assistant", "content": sign * (1 + number % 3)}],
        }
        for number, (row, word, sign) in enumerate(
            zip(
                tiny.rows(),
                ["one plus", "is two", "what is"] * 12,
                ["?3#", "9!9", "%A&"] * 12,
                strict=True,
            )
        )
    ]


def train_reward_model(root: Path, model: Path, changes: Changes) -> RunDir:
    settings = {"method": "reward", "optimisation__max_steps": 16, "samples__max_new_tokens": 1}
    run = tiny.train(root, model, pairs(), **settings | changes)
    assert isinstance(tiny.last_event(run), Finished)
    return run


@pytest.fixture(scope="module")
def full(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train_reward_model(tmp_path_factory.mktemp("reward") / "full", model, {})


@pytest.fixture(scope="module")
def adapter(model: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return train_reward_model(tmp_path_factory.mktemp("reward") / "adapter", model, LORA)


def judge_of(run: RunDir, base: Path | None = None) -> RewardJudge:
    """Return how the reward model of a run is loaded; an adapter needs its base."""
    request = GenerationRequest(
        model=str(base or run.artifacts),
        adapter=str(run.artifacts) if base else "",
        gives_scores=True,
        ids=[],
        stops=[],
    )
    return RewardJudge(model=request, max_length=128)


def grader(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 -- fields
    prompt = {"role": "user", "content": "{{ item.messages[-1].content }}"}
    answer = {"role": "assistant", "content": "{{ sample.output_text }}"}
    return {
        "type": "score_model",
        "name": "reward",
        "model": NAME,
        "input": [prompt, answer],
        **fields,
    }


def lay_out(root: Path, model: Path, judge: RewardJudge | None, changes: Changes) -> RunDir:
    settings = {"method": "grpo"} | SMALL | {"reward__grader": grader(range=[-50, 50])}
    run = tiny.write_run(root, model, **settings | changes)
    spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
    judges = {} if judge is None else {NAME: judge}
    asked = spec.model_copy(update={"reward_models": judges})
    run.job.write_text(asked.model_dump_json(), encoding="utf-8")
    return run


def train(root: Path, model: Path, judge: RewardJudge | None, changes: Changes) -> RunDir:
    run = lay_out(root, model, judge, changes)
    execute_run(run.root, StopHandler())
    return run


def plain_scores(reward: RunDir, base: Path | None, turns: list[list[Row]]) -> list[float]:
    """Return the scores of conversations, one at a time, without the studio."""
    config = AutoConfig.from_pretrained(reward.artifacts)
    source = base or reward.artifacts
    plain = AutoModelForSequenceClassification.from_pretrained(source, config=config)
    if base:
        plain = PeftModel.from_pretrained(plain, reward.artifacts)
    plain = plain.eval()
    tokenizer = AutoTokenizer.from_pretrained(reward.artifacts)
    scores = []
    for one in turns:
        inputs = tokenizer.apply_chat_template(one, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            scores.append(float(plain(**inputs).logits[0, 0]))
    return scores


def conversations(groups: list[dict[str, Any]]) -> list[list[Row]]:
    return [
        [
            {"role": "user", "content": group["prompt"]},
            {"role": "assistant", "content": answer["text"]},
        ]
        for group in groups
        for answer in group["answers"]
    ]


def rewards(groups: list[dict[str, Any]]) -> list[float]:
    return [answer["reward"] for group in groups for answer in group["answers"]]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp32_bf16_matmul"])
@pytest.mark.parametrize("kind", ["full", "adapter"])
def test_answers_get_the_scores_of_plain_transformers(
    kind: str,
    precision: str,
    model: Path,
    tmp_path: Path,
    full: RunDir,
    adapter: RunDir,
) -> None:
    """In batches, and whatever the precision of the model that trains."""
    reward, base = (full, None) if kind == "full" else (adapter, model)
    run = train(tmp_path / "run", model, judge_of(reward, base), {"precision": precision})

    groups = records(run) + records(run, "validation")
    assert isinstance(tiny.last_event(run), Finished)
    expected = plain_scores(reward, base, conversations(groups))
    assert rewards(groups) == pytest.approx(expected, abs=1e-5)
    assert len({round(score, 3) for score in expected}) > 20


def test_score_without_a_range_is_squashed(model: Path, tmp_path: Path, full: RunDir) -> None:
    run = train(tmp_path / "run", model, judge_of(full), {"reward__grader": grader()})

    groups = records(run)
    expected = plain_scores(full, None, conversations(groups))
    assert rewards(groups) == pytest.approx([squash(score) for score in expected], abs=1e-5)
    assert all(0 < reward < 1 for reward in rewards(groups))


@pytest.mark.parametrize("method", ["grpo", "rloo"])
def test_held_out_reward_rises(method: str, model: Path, tmp_path: Path, full: RunDir) -> None:
    changes = {"method": method, "optimisation__max_steps": 30, "reward__grader": grader()}
    run = train(tmp_path / "run", model, judge_of(full), changes)

    validation = tiny.metric_values(run, "eval_reward")
    assert isinstance(tiny.last_event(run), Finished)
    assert validation[-1] > validation[0] + 0.1


def test_held_out_grader_may_be_a_reward_model(model: Path, tmp_path: Path, full: RunDir) -> None:
    changes = {"reward__grader": SMALL["reward__grader"], "reward__held_out_grader": grader()}
    run = train(tmp_path / "run", model, judge_of(full), changes)

    groups = [group for group in records(run, "validation") if group["step"] == 0]
    scores = [squash(score) for score in plain_scores(full, None, conversations(groups))]
    told = tiny.metric_values(run, "eval_held_out_score")[0]
    assert told == pytest.approx(sum(scores) / len(scores), abs=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_killed_run_writes_and_scores_the_same_answers(
    precision: str, model: Path, tmp_path: Path, full: RunDir
) -> None:
    changes = {
        "precision": precision,
        "rollouts__steps_per_generation": 3,
        "optimisation__max_steps": 11,
        "optimisation__per_device_train_batch_size": 3,
        "evaluation__eval_steps": 3,
        "evaluation__logging_steps": 2,
    }
    whole = train(tmp_path / "whole", model, judge_of(full), SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.resumed_at(again) == [(2, 7)]
    assert again.rollouts.read_text() == whole.rollouts.read_text()
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def copy_of(reward: RunDir, folder: Path) -> RunDir:
    shutil.copytree(reward.root, folder)
    return RunDir(folder)


def without_template(run: RunDir) -> None:
    (run.artifacts / "chat_template.jinja").unlink()


def without_tokenizer(run: RunDir) -> None:
    for path in run.artifacts.glob("token*"):
        path.unlink()


def without_weights(run: RunDir) -> None:
    (run.artifacts / "model.safetensors").unlink()


def with_half_the_weights(run: RunDir) -> None:
    path = run.artifacts / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def without_files(run: RunDir) -> None:
    shutil.rmtree(run.artifacts)


@pytest.mark.parametrize(
    "damage",
    [without_template, without_tokenizer, without_weights, with_half_the_weights, without_files],
)
def test_damaged_reward_model_ends_the_run_with_the_reason(
    damage: Any,  # noqa: ANN401 -- changes a run
    model: Path,
    tmp_path: Path,
    full: RunDir,
) -> None:
    broken = copy_of(full, tmp_path / "broken")
    damage(broken)
    failed = tiny.last_event(train(tmp_path / "run", model, judge_of(broken), {}))

    assert isinstance(failed, Failed)
    assert failed.code == "conflict"
    assert failed.message.startswith("The reward model run:7 does not work: ")
    assert failed.hint


def test_run_that_does_not_know_its_reward_model_ends(model: Path, tmp_path: Path) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, None, {}))

    assert isinstance(failed, Failed)
    assert "The reward model run:7 does not work: " in failed.message


@pytest.mark.parametrize(
    "changes",
    [
        {"type": "label_model", "labels": ["a", "b"], "passing_labels": ["a"]},
        {"model": "starter"},
    ],
)
def test_what_no_reward_model_gives_is_refused(
    changes: dict[str, Any], model: Path, tmp_path: Path, full: RunDir
) -> None:
    asked = {"reward__grader": grader(**changes)}
    failed = tiny.last_event(train(tmp_path / "run", model, judge_of(full), asked))

    assert isinstance(failed, Failed)
    assert failed.code == "conflict"
    assert failed.message.startswith(changes.get("model", NAME))


def test_scores_do_not_depend_on_what_is_read_together(full: RunDir) -> None:
    """Also under the autocast and the products of a model that trains beside it."""
    loaded = reward_models.load_all({NAME: judge_of(full)}, [NAME])[NAME]
    rows = [
        loaded.tokenise(
            [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "is " * size}]
        )
        for size in (30, 1, 12, 0, 5)
    ]
    alone = [loaded.score([row])[0] for row in rows]
    device = torch.device("cpu")
    with (
        torch.autocast("cpu", torch.bfloat16),
        matmul_precision.apply_precision(PRECISIONS["fp32_bf16_matmul"], device),
    ):
        together = loaded.score(rows)

    assert together == pytest.approx(alone, abs=1e-6)


def test_all_answers_are_written_out_by_one_process(
    full: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = Mock(side_effect=template_process._spawn)
    monkeypatch.setattr(template_process, "_spawn", spawn)
    loaded = reward_models.load_all({NAME: judge_of(full)}, [NAME])[NAME]
    for size in range(5):
        answer = {"role": "assistant", "content": "is " * size}
        loaded.tokenise([{"role": "user", "content": "What?"}, answer])

    assert spawn.call_count <= 1
