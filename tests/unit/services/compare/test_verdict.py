"""What a comparison claims, and that it claims no more than its runs show."""

from typing import Any

import pytest
from sqlmodel import Session

from studio.db.states import RunStatus
from studio.db.tables import Run
from studio.protocols.events import Sampled
from studio.services.compare import compare, verdict
from studio.services.compare.verdict import Verdict, compare_sides
from studio.services.runs import attempts, states
from tests.support.factories import make_recipe, make_running, metrics_event


def train(db: Session, loss: float, speed: float = 1000.0, **recipe: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    run = make_running(db, **recipe)
    told = [
        metrics_event(step, loss=loss, eval_loss=loss, tokens_per_second=speed + step % 2)
        for step in range(1, 11)
    ]
    answer = Sampled(stage="after", step=10, position=0, prompt="?", reference="4", answer="4")
    attempts.apply_events(db, run, [*told, answer], 1)
    states.move(db, run, RunStatus.SUCCEEDED)
    return run


def judged(db: Session, *runs: Run) -> Verdict:
    return verdict.judge(db, compare.compare(db, [run.id or 0 for run in runs]))


def seeds(db: Session, precision: str, losses: list[float]) -> list[Run]:
    return [
        train(db, loss, precision=precision, optimisation={"seed": seed})
        for seed, loss in enumerate(losses, 1)
    ]


def test_small_difference_with_one_seed_each_is_not_visible(db: Session) -> None:
    made = judged(db, train(db, 1.0, precision="fp32"), train(db, 1.01))

    assert (made.headline, made.tone) == (["No visible difference."], "open")
    assert made.evidence[:2] == [
        "Validation loss: float32 1 (n = 1); bfloat16 1.01 (n = 1)",
        "One seed each: how far seeds alone scatter is not known yet.",
    ]


def test_large_difference_with_one_seed_each_is_left_open(db: Session) -> None:
    made = judged(db, train(db, 1.0, precision="fp32"), train(db, 2.0))

    assert made.headline == ["float32 is ahead by 50 %, with one seed each."]


def train_kto(db: Session, margin: float, **recipe: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    run = make_running(db)
    run.recipe = make_recipe(method="kto", **recipe)
    values = {"eval_rating_margin": margin, "eval_loss": 0.5}
    attempts.apply_events(db, run, [metrics_event(1, **values)], 1)
    states.move(db, run, RunStatus.SUCCEEDED)
    return run


@pytest.mark.parametrize(
    ("margins", "headline"),
    [
        ((0.3, 0.0001), "float32 is ahead with 0.3 against 0.0001, with one seed each."),
        ((0.3, -0.2), "float32 is ahead with 0.3 against \N{MINUS SIGN}0.2, with one seed each."),
        ((0.0, 0.0), "No visible difference."),
    ],
)
def test_difference_from_a_margin_near_zero_is_not_relative(
    db: Session, margins: tuple[float, float], headline: str
) -> None:
    made = judged(db, train_kto(db, margins[0], precision="fp32"), train_kto(db, margins[1]))

    assert made.headline == [headline]


def train_reward(db: Session, share: float, **recipe: Any) -> Run:  # noqa: ANN401 -- any field of a recipe
    run = make_running(db)
    run.recipe = make_recipe(method="reward", **recipe)
    attempts.apply_events(db, run, [metrics_event(1, eval_preferred_share=share)], 1)
    states.move(db, run, RunStatus.SUCCEEDED)
    return run


def test_shares_are_compared_as_percentages_not_as_parts_of_each_other(db: Session) -> None:
    first = [
        train_reward(db, share, precision="fp32", optimisation={"seed": seed})
        for seed, share in ((1, 0.7), (2, 0.69))
    ]
    second = train_reward(db, 0.5, optimisation={"seed": 1})

    made = judged(db, *first, second)

    assert made.evidence[:2] == [
        "Validation preference accuracy: float32 69.5 % ± 0.707 % (n = 2); bfloat16 50 % (n = 1)",
        "Seeds alone explain a difference of up to 11 points (t-test, 95 %).",
    ]


def test_methods_not_judged_by_loss_are_named_by_what_judges_them(db: Session) -> None:
    made = judged(db, train_reward(db, 0.7), train_reward(db, 0.6, data={"max_length": 32}))

    (headline,) = made.headline
    assert headline.startswith("Validation preference accuracy cannot be compared: the runs have ")


def test_shares_of_different_base_models_are_compared(db: Session) -> None:
    made = judged(db, train_reward(db, 0.7), train_reward(db, 0.5, base_model="someone/model"))

    assert "cannot be compared" not in made.headline[0]
    made = judged(db, train(db, 1.0), train(db, 1.5, base_model="someone/model"))
    assert made.headline[0].startswith("Validation loss cannot be compared: ")


def test_losses_of_different_methods_have_no_difference(db: Session) -> None:
    first, second = train(db, 1.0), train_kto(db, 0.1)
    made = compare.compare(db, [first.id or 0, second.id or 0])

    assert [cell.delta for cell in made.metrics["eval_loss"]] == [None, None]
    assert verdict.judge(db, made).headline == [
        "Not comparable: the runs have different training methods."
    ]


def test_clear_speed_difference_is_in_headline(db: Session) -> None:
    made = judged(db, train(db, 1.0, 1370, precision="fp32"), train(db, 1.0, 1000))

    assert made.headline == ["No visible difference.", "float32 trained 37 % faster."]


def test_speed_within_its_scatter_is_not_in_headline(db: Session) -> None:
    assert len(judged(db, train(db, 1.0, 1000.5, precision="fp32"), train(db, 1.0)).headline) == 1


def test_same_answers_are_counted(db: Session) -> None:
    made = judged(db, train(db, 1.0, precision="fp32"), train(db, 1.0))

    assert made.evidence[-2:] == [
        "Same answers to 1 of 1 prompts.",
        "Right answers: float32 1/1; bfloat16 1/1",
    ]


SETTLED = [
    ([1.0, 1.01, 1.02], [2.0, 2.01, 2.02], "float32 is better than bfloat16, beyond seed noise."),
    ([1.0, 1.2, 1.4], [1.1, 1.3, 1.5], "No difference beyond seed noise."),
]


@pytest.mark.parametrize(("first", "second", "headline"), SETTLED)
def test_three_seeds_each_settle_it(
    db: Session, first: list[float], second: list[float], headline: str
) -> None:
    made = judged(db, *seeds(db, "fp32", first), *seeds(db, "bf16", second))

    assert (made.headline[0], made.more_seeds) == (headline, None)


def test_best_and_worst_of_several_recipes_are_named(db: Session) -> None:
    losses = (("fp32", 1.0), ("bf16", 1.5), ("fp16", 2.0))
    runs = [train(db, loss, precision=name) for name, loss in losses]

    assert judged(db, *runs).headline == [
        "float32 did best, float16 worst.",
        "With one seed each, noise is unknown.",
    ]


def test_seeds_of_one_recipe_are_not_compared(db: Session) -> None:
    made = judged(db, *seeds(db, "fp32", [1.0, 2.0]))

    assert (made.headline, made.more_seeds) == (["These runs differ only in their seed."], None)


def test_running_run_has_no_verdict(db: Session) -> None:
    made = judged(db, train(db, 1.0, precision="fp32"), make_running(db))

    assert made.headline == ["bfloat16 has not finished yet, so there is no verdict."]


def test_failed_run_has_no_verdict(db: Session) -> None:
    failed = make_running(db)
    states.move(db, failed, RunStatus.FAILED)

    assert judged(db, train(db, 1.0, precision="fp32"), failed).headline == [
        "bfloat16 did not finish, so there is no verdict."
    ]


def test_nan_loss_is_said(db: Session) -> None:
    made = judged(db, train(db, 1.0, precision="fp32"), train(db, float("nan")))

    assert made.headline == ["The loss of bfloat16 became NaN or infinite."]


UNFAIR: list[tuple[dict[str, Any], str]] = [
    ({"data": {"max_length": 32}}, "data settings, so their validation examples differ."),
    ({"precision": "fp32", "optimisation": {"seed": 7}}, "hold out different validation rows."),
]


@pytest.mark.parametrize(("recipe", "reason"), UNFAIR)
def test_losses_of_different_rows_are_not_compared(
    db: Session, recipe: dict[str, Any], reason: str
) -> None:
    made = judged(db, train(db, 1.0), train(db, 0.1, **recipe))

    assert made.headline[0].startswith("Validation loss cannot be compared: ")
    assert made.headline[0].endswith(reason)


def test_values_without_repeats_are_unknown() -> None:
    assert [compare_sides(*pair) for pair in (([1], [9]), ([1, 1.1], [9]), ([1, 9], [5]))] == [
        "unknown",
        "beyond",
        "within",
    ]


def test_added_seeds_repeat_each_recipe_with_the_same_new_seeds(db: Session) -> None:
    runs = [train(db, 1.0, precision="fp32"), train(db, 1.0)]
    proposed = judged(db, *runs).more_seeds
    assert proposed is not None
    added = verdict.add_seeds(db, proposed.run_ids)

    assert [(run.recipe.precision, run.recipe.optimisation.seed) for run in added] == [
        ("fp32", 1),
        ("bf16", 1),
        ("fp32", 2),
        ("bf16", 2),
    ]
