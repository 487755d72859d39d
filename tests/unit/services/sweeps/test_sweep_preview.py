"""What a sweep comes to before it starts: its runs, what cannot be, and what is refused."""

import pytest
from sqlalchemy import event
from sqlmodel import Session

from studio.errors import InvalidError
from studio.recipe.search_space import Range, SearchSpace, Values
from studio.services.sweeps import sweep_preview
from studio.services.sweeps.sweep_preview import SweepPlan
from tests.support.factories import make_recipe

RATE, RANK = "optimisation.learning_rate", "adapter.r"
LOG = Range(low=1e-5, high=1e-2, log=True)


def several(*values: object) -> Values:
    return Values.model_validate({"values": list(values)})


GRID: SearchSpace = {RATE: several("1e-4", "1e-3"), RANK: several("4", "8")}


@pytest.mark.parametrize(
    ("plan", "param", "said"),
    [
        (SweepPlan(space={}), "space", "No setting varies yet."),
        (SweepPlan(space={RANK: several("8")}), "space", "No setting varies yet."),
        (
            SweepPlan(space={RATE: LOG}),
            RATE,
            "A grid needs discrete values, but this range is continuous.",
        ),
        (SweepPlan(space={RANK: Range(low=1, high=101)}), RANK, "A grid needs discrete values"),
        (SweepPlan(space={RANK: several("4", "x")}), RANK, "x: Must be a whole number between"),
        (SweepPlan(space={RATE: several("1", "2")}), RATE, "2: Must be more than 0 and at most 1."),
        (SweepPlan(space={"moon": several(1, 2)}), "moon", "1: Unknown field."),
        (
            SweepPlan(space={RANK: Range(low=4, high=9, step=0.5)}),
            RANK,
            "A whole-number setting needs",
        ),
        (
            SweepPlan(space={"optimisation.optim": LOG}),
            "optimisation.optim",
            "1e-05: Must be 'adamw_torch_fused'",
        ),
        (
            SweepPlan(space=GRID, strategy="random", count=5),
            "count",
            "There are only 4 combinations.",
        ),
        (
            SweepPlan(space=GRID, strategy="random", count=0),
            "count",
            "A sweep can have 1 to 500 runs.",
        ),
        (SweepPlan(space=GRID, is_pruning=True), "is_pruning", "Only a TPE search can stop"),
        (SweepPlan(space=GRID, parallel=0), "parallel", "Choose 1 to 64 parallel runs."),
        (
            SweepPlan(space={"dataset": several("moon", "mars")}),
            "space",
            "None of these settings can run here. There is no dataset named moon.",
        ),
    ],
)
def test_invalid_sweep_plan_is_rejected(
    db: Session, plan: SweepPlan, param: str, said: str
) -> None:
    with pytest.raises(InvalidError) as refused:
        sweep_preview.preview(db, make_recipe(), plan)

    assert refused.value.param == param
    assert refused.value.message.startswith(said)


def test_adapter_settings_vary_only_with_their_adapter_kind(db: Session) -> None:
    space: SearchSpace = {"adapter.kind": several("lora", "full"), RANK: several("4", "8")}
    found = sweep_preview.preview(db, make_recipe(), SweepPlan(space=space))

    assert [*found.planned] == [
        {"adapter.kind": "lora", RANK: 4},
        {"adapter.kind": "lora", RANK: 8},
        {"adapter.kind": "full"},
    ]


def test_setting_of_several_adapters_varies_with_each_of_them(db: Session) -> None:
    space: SearchSpace = {
        "adapter.kind": several("oft", "ia3", "full"),
        "adapter.oft_block_size": several("16"),
        "adapter.target_modules": several("attention", "mlp"),
    }
    found = sweep_preview.preview(db, make_recipe(), SweepPlan(space=space))

    targets = [one.get("adapter.target_modules") for one in found.planned]
    assert [one["adapter.kind"] for one in found.planned] == ["oft", "oft", "ia3", "ia3", "full"]
    assert targets == ["attention", "mlp", "attention", "mlp", None]


def test_settings_of_encoder_decoder_models_can_be_swept(db: Session) -> None:
    recipe = make_recipe(method="seq2seq", base_model="google-t5/t5-small")
    space: SearchSpace = {"rewriting.label_smoothing": several("0", "0.1"), RANK: several("4", "8")}
    found = sweep_preview.preview(db, recipe, SweepPlan(space=space, metric="eval_chrf_share"))

    assert (found.count, found.left_out) == (4, 0)


def test_setting_unused_by_all_runs_is_rejected(db: Session) -> None:
    plan = SweepPlan(space={RANK: several("4", "8")})
    with pytest.raises(InvalidError) as refused:
        sweep_preview.preview(db, make_recipe(adapter={"kind": "full"}), plan)

    assert (refused.value.param, refused.value.hint) == (RANK, "Vary adapter.kind, too.")


def test_large_grid_preview_needs_no_extra_queries(db: Session) -> None:
    asked: list[str] = []
    event.listen(db.get_bind(), "before_cursor_execute", lambda *about: asked.append(str(about[2])))
    counts = []
    for ranks in (range(1, 3), range(1, 51)):
        asked.clear()
        sweep_preview.preview(db, make_recipe(), SweepPlan(space={RANK: several(*ranks)}))
        counts.append(len(asked))

    assert counts[1] <= counts[0]


def test_invalid_combinations_are_reported_and_skipped(db: Session) -> None:
    space: SearchSpace = {"dataset": several("starter", "moon"), RANK: several(4, 8)}
    found = sweep_preview.preview(db, make_recipe(), SweepPlan(space=space))

    assert (found.count, found.looked_at, found.left_out) == (2, 4, 2)
    assert [(one.message, one.count, one.example) for one in found.refused] == [
        ("There is no dataset named moon.", 2, "dataset=moon r=4")
    ]


def test_duration_is_unknown_without_earlier_run(db: Session) -> None:
    assert sweep_preview.preview(db, make_recipe(), SweepPlan(space=GRID)).seconds is None


def test_optional_field_can_be_swept_as_none() -> None:
    space = sweep_preview.convert_space(
        make_recipe(), {"optimisation.max_steps": several("none", "9")}
    )

    assert space == {"optimisation.max_steps": several(None, 9)}


def test_range_bounds_are_converted_to_field_type() -> None:
    space = sweep_preview.convert_space(make_recipe(), {RATE: Range(low=0.5, high=1)})

    assert space == {RATE: Range(low=0.5, high=1.0)}
    assert isinstance(space[RATE].model_dump()["high"], float)
