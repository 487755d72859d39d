"""What is offered to mend a failure, and that only what can run here is."""

from typing import Any

import pytest
from sqlmodel import Session

from studio.db.tables import Model
from studio.methods import AnyRecipe
from studio.services.runs import fixes
from studio.services.runs.attempts import smaller_batch
from tests.support.factories import make_recipe


def batches(size: int, times: int = 1) -> dict[str, Any]:
    return {"per_device_train_batch_size": size, "gradient_accumulation_steps": times}


def titles(db: Session, code: str, recipe: AnyRecipe, **facts: int) -> list[str]:
    return [one.title for one in fixes.list_fixes(db, code, recipe, facts)]


@pytest.mark.parametrize(
    ("size", "times", "smaller"),
    [(8, 1, batches(4, 2)), (8, 3, batches(4, 6)), (6, 1, batches(3, 2)), (7, 2, batches(1, 14))],
)
def test_smaller_batch_keeps_effective_batch_size(
    size: int, times: int, smaller: dict[str, Any]
) -> None:
    recipe = make_recipe(optimisation=batches(size, times))

    assert smaller_batch(recipe) == {"optimisation": smaller}


def test_batch_of_one_cannot_be_reduced() -> None:
    assert smaller_batch(make_recipe(optimisation=batches(1, 8))) == {}


def test_out_of_memory_offers_smaller_batch_first(db: Session) -> None:
    recipe = make_recipe(optimisation=batches(8))

    assert titles(db, "out_of_memory", recipe) == ["with batch size 4 and 2 accumulation steps"]


def test_batch_of_one_out_of_memory_offers_other_fixes(db: Session) -> None:
    recipe = make_recipe(optimisation=batches(1), adapter={"kind": "full"})

    assert titles(db, "out_of_memory", recipe) == [
        "with activation checkpointing",
        "with a max sequence length of 512 tokens",
        "with a LoRA adapter",
    ]


def test_accumulation_beyond_limit_is_not_offered(db: Session) -> None:
    recipe = make_recipe(optimisation=batches(2, 4096))

    assert titles(db, "out_of_memory", recipe) == []


def test_sequence_too_long_fix_offers_needed_length(db: Session) -> None:
    found = fixes.list_fixes(db, "sequence_too_long", make_recipe(), {"longest": 1500})

    assert [(one.title, one.change) for one in found] == [
        ("with a max sequence length of 1,536 tokens", {"data": {"max_length": 1536}})
    ]


def test_missing_model_fix_offers_available_models(db: Session) -> None:
    found = fixes.list_fixes(db, "model_not_found", make_recipe(base_model="owner/gone"))

    assert [(one.change, one.swap) for one in found] == [({"base_model": "starter"}, "base_model")]


def test_missing_model_folder_is_not_offered(db: Session) -> None:
    db.add(Model(name="ghost", kind="folder", location="/nowhere/at/all"))
    db.flush()
    recipe = make_recipe(base_model="owner/gone")

    assert titles(db, "gated_model", recipe) == ["on starter"]


def test_transient_failure_offers_retry_without_changes(db: Session) -> None:
    found = fixes.list_fixes(db, "killed", make_recipe())

    assert [(one.title, one.change) for one in found] == [("without changes", {})]


@pytest.mark.parametrize(
    ("code", "changes", "found"),
    [
        (
            "answers_cut_off",
            {},
            {"with a max answer length of 512 tokens": {"rollouts": {"max_new_tokens": 512}}},
        ),
        ("answers_cut_off", {"rollouts": {"max_new_tokens": 65_536}}, {}),
        (
            "no_spread",
            {},
            {
                "with 16 answers per prompt": {
                    "rollouts": {"answers_per_prompt": 16},
                    "optimisation": {"per_device_train_batch_size": 2},
                }
            },
        ),
        ("no_spread", {"rollouts": {"answers_per_prompt": 256}}, {}),
        (
            "kl_runaway",
            {"policy": {"beta": 0.03}},
            {
                "with a learning rate of 1e-06": {"optimisation": {"learning_rate": 1e-6}},
                "with a beta of 0.06": {"policy": {"beta": 0.06}},
            },
        ),
        (
            "reward_hacked",
            {},
            {
                "with a beta of 0.04": {"policy": {"beta": 0.04}},
                "with a learning rate of 1e-06": {"optimisation": {"learning_rate": 1e-6}},
            },
        ),
        ("sampling_differs", {}, {"in float32": {"precision": "fp32"}}),
    ],
)
def test_reinforcement_alarms_offer_changed_settings(
    code: str, changes: dict[str, Any], found: dict[str, Any], db: Session
) -> None:
    offered = fixes.list_fixes(db, code, make_recipe(method="grpo", **changes))

    assert {one.title: one.change for one in offered if not one.swap} == found


def test_solved_task_needs_no_more_answers(db: Session) -> None:
    recipe = make_recipe(method="grpo")

    assert titles(db, "no_spread", recipe, solved=0) == ["with 16 answers per prompt"]
    assert titles(db, "no_spread", recipe, solved=1) == []


def test_reinforcement_fixes_are_for_runs_that_write_answers(db: Session) -> None:
    codes = ("answers_cut_off", "no_spread", "reward_hacked")

    assert [titles(db, code, make_recipe()) for code in codes] == [
        [],
        [],
        ["with a learning rate of 2e-05"],
    ]
