"""Evaluations of models that read a text: they say what training measured on the same rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from studio.errors import InvalidError, StudioError
from studio.evaluation import metrics, statistics
from studio.evaluation.rows import AnsweredRow, AnswerKind
from studio.protocols.evaluation import EvaluationJob, RowResult
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.evaluate import evaluate
from studio.runner.training_run import load_recipe
from tests.training import tiny
from tests.training.runs import (
    test_classification,
    test_regression,
    test_reward_models,
    test_step_models,
    test_token_models,
)
from tests.training.runs.test_encoders import write_encoder
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

SEVERAL = [
    row | {"labels": labels}
    for row, labels in zip(
        test_classification.TEXTS, (["a"], ["a", "b"], [], ["b"]) * 12, strict=True
    )
]


@dataclass(frozen=True)
class Case:
    """A method, its rows, and which metric of the training each metric of the evaluation is."""

    runs: tiny.Runs
    kind: AnswerKind
    trained: Mapping[str, str]
    learns: Changes
    rows: list[Row] | None = None


CASES = {
    "labels": Case(
        test_classification.runs,
        "label",
        {
            "right_label": "eval_accuracy",
            "macro_f1": "eval_macro_f1",
            "label_loss": "eval_loss",
            "label_calibration_error": "eval_calibration_error",
        },
        test_classification.LEARNS,
    ),
    "several labels": Case(
        test_classification.runs,
        "label",
        {
            "right_label": "eval_accuracy",
            "macro_f1": "eval_macro_f1",
            "micro_f1": "eval_micro_f1",
        },
        test_classification.LEARNS,
        SEVERAL,
    ),
    "numbers": Case(test_regression.runs, "number", {"r2": "eval_r2"}, test_regression.LEARNS),
    "a number": Case(
        test_regression.runs,
        "number",
        {"r2": "eval_r2", "rmse": "eval_rmse", "mae": "eval_mae"},
        test_regression.LEARNS,
        test_regression.PLAIN,
    ),
    "entities": Case(
        test_token_models.runs,
        "entities",
        {
            "entity_f1": "eval_entity_f1",
            "entity_precision": "eval_entity_precision",
            "entity_recall": "eval_entity_recall",
        },
        test_token_models.LEARNS,
    ),
    "steps": Case(
        test_step_models.runs,
        "steps",
        {
            "wrong_step_f1": "eval_wrong_step_f1",
            "first_error": "eval_first_error_share",
            "right_steps": "eval_step_accuracy",
        },
        test_step_models.LEARNS,
    ),
    "preferences": Case(
        test_reward_models.runs,
        "score",
        {"preferred": "eval_preferred_share", "preference_loss": "eval_loss"},
        {"optimisation__max_steps": 20, "scoring__centring": 0.0},
    ),
}


def job(run: RunDir, kind: AnswerKind, **changes: object) -> EvaluationJob:
    """Return the evaluation of a run on the rows that it held out."""
    recipe, base = load_recipe(run), str(run.root.parent / "model")
    place = (
        {"model": str(run.artifacts)}
        if recipe.adapter.kind == "full"
        else {"model": base, "adapter": str(run.artifacts)}
    )
    fields = {
        "about": "run 1",
        "answer_set": 1,
        "answers": kind,
        "method": recipe.method,
        "model": GenerationRequest(ids=[], stops=[], gives_scores=True, **place),
        "train": run.root / "train.jsonl",
        "validation": None,
        "validation_share": recipe.data.validation_share,
        "seed": recipe.optimisation.seed,
        "with_bad": False,
        "rows": 1000,
        "chat_template": "model",
        "has_chat_template": True,
        "has_expected": True,
        "max_length": recipe.data.max_length,
        "max_new_tokens": 12,
        "trained_on": run.root / "train.jsonl",
    }
    return EvaluationJob.model_validate(fields | changes)


def answer(tmp_path: Path, asked: EvaluationJob) -> list[AnsweredRow]:
    folder = TaskDir(tmp_path)
    folder.files.mkdir(exist_ok=True, parents=True)
    result = evaluate(folder, asked.model_dump(mode="json"), lambda _phase, _share: None)
    return [RowResult.model_validate(row).to_row() for row in result["rows"]]


def values(rows: list[AnsweredRow]) -> dict[str, float]:
    return {one.key: statistics.value(one, rows) for one in metrics.for_rows(rows)}


def trained(run: RunDir, key: str) -> float:
    return tiny.metric_values(run, key)[-1]


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("name", CASES)
def test_figures_equal_those_of_the_training(name: str, adapter: Changes, tmp_path: Path) -> None:
    case = CASES[name]
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    run = case.runs.train(tmp_path / "run", model, case.learns | adapter, case.rows)
    rows = answer(tmp_path / "task", job(run, case.kind))
    found = values(rows)

    assert {row.kind for row in rows} == {case.kind}
    assert set(case.trained) <= set(found)
    for key, measured in case.trained.items():
        # Numbers are written with four digits of their scatter.
        assert found[key] == pytest.approx(trained(run, measured), rel=2e-3, abs=2e-3), key
    assert metrics.primary(rows).key in found


@pytest.mark.parametrize("name", ["labels", "a number", "entities"])
def test_encoders_are_evaluated(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = write_encoder(tmp_path / "model", "bert")
    run = case.runs.train(tmp_path / "run", model, case.learns, case.rows)
    found = values(answer(tmp_path / "task", job(run, case.kind)))

    for key, measured in case.trained.items():
        assert found[key] == pytest.approx(trained(run, measured), rel=2e-3, abs=2e-3), key


@pytest.mark.parametrize("name", CASES)
def test_rule_needs_no_model(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    run = case.runs.write(tmp_path / "run", model, case.learns, case.rows)
    asked = job(run, case.kind, model=None)
    rows = answer(tmp_path / "task", asked)

    assert {row.kind for row in rows} == {case.kind}
    assert all(row.tokens == 0 for row in rows)
    assert metrics.primary(rows).key in values(rows)


def test_rule_without_training_data_is_refused_in_words(tmp_path: Path) -> None:
    case = CASES["labels"]
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    run = case.runs.write(tmp_path / "run", model)

    with pytest.raises(InvalidError, match="training data is gone"):
        answer(tmp_path / "task", job(run, "label", model=None, trained_on=None))


def test_interrupted_reading_continues(tmp_path: Path) -> None:
    case = CASES["labels"]
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    run = case.runs.train(tmp_path / "run", model, case.learns)
    whole = answer(tmp_path / "task", job(run, "label"))
    results = tmp_path / "task" / "files" / "rows.jsonl"
    lines = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"".join(lines[:3]) + lines[3][:20])

    assert answer(tmp_path / "task", job(run, "label")) == whole
    assert len(results.read_bytes().splitlines()) == len(whole)


def test_other_numbers_than_the_models_are_refused_in_words(tmp_path: Path) -> None:
    case = CASES["numbers"]
    model = tiny.write_model(tmp_path / "model", tiny.llama())
    run = case.runs.train(tmp_path / "run", model, {"optimisation__max_steps": 2})
    others = tiny.write_rows(tmp_path / "others.jsonl", test_regression.PLAIN)
    asked: dict[str, Any] = {"train": others, "is_whole": True}

    with pytest.raises(StudioError, match="The model gives price, stars, and row 1 has number"):
        answer(tmp_path / "task", job(run, "number", **asked))
