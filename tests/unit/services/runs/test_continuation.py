"""Recipes that continue from a run: their settings, refusals, files and lineage."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from sqlmodel import Session

from studio.db.tables import Run
from studio.errors import InvalidError
from studio.protocols.run_dir import JobSpec, RunDir
from studio.recipe.lora_variants import LORA_VARIANTS, VariantName
from studio.services.models import models
from studio.services.runs import bulk_actions, continuation, run_commands, runs
from studio.settings import Settings
from studio.worker.processes import run_dir_setup
from tests.support.factories import make_finished_run, make_recipe, make_run, make_running

LORA = {"kind": "lora", "r": 4, "lora_alpha": 8}


def make_parent(db: Session, settings: Settings, **adapter: Any) -> Run:  # noqa: ANN401 -- settings
    """Make a run that succeeded, with the files of an adapter."""
    run = make_finished_run(db, adapter=LORA | adapter)
    folder = RunDir(settings.runs / str(run.id)).artifacts
    folder.mkdir(parents=True)
    for name in ("adapter_config.json", "adapter_model.safetensors", "tokenizer.json"):
        (folder / name).write_text(name, encoding="utf-8")
    return run


def refusals(db: Session, **adapter: Any) -> list[tuple[str, dict[str, Any]]]:  # noqa: ANN401 -- settings
    recipe = make_recipe(adapter=LORA | {"continue_from": "run-1"} | adapter)
    return [(one.message, one.repair) for one in continuation.check(db, recipe)]


@pytest.mark.parametrize("variant", LORA_VARIANTS)
def test_recipe_that_continues_is_accepted(
    variant: VariantName, db: Session, settings: Settings
) -> None:
    """Every kind of adapter can be continued with the settings that the run offers."""
    dtype = "nf4" if LORA_VARIANTS[variant].corrects_rounding else "native"
    parent = make_parent(db, settings, variant=variant, lora_dropout=0.1, base_dtype=dtype)
    recipe = make_recipe(**continuation.start_values(parent))

    assert continuation.check(db, recipe) == []
    assert recipe.adapter.model_dump()["base_dtype"] == dtype
    assert recipe.adapter.model_dump()["r"] == (8 if LORA_VARIANTS[variant].changes_base else 4)
    assert f"from=run:{parent.id}&adapter.continue_from=run-1" in continuation.start_url(parent)


def test_full_fine_tune_continues_from_the_model(db: Session) -> None:
    parent = make_finished_run(db, adapter={"kind": "full"})

    assert continuation.start_url(parent) == "/new?from=run:1&base_model=run-1"
    assert refusals(db) == [
        (
            "Run 1 trained the model's own weights and has no adapter.",
            {"base_model": "run-1", "adapter": {"continue_from": None}},
        )
    ]


def test_model_that_writes_no_text_continues_only_as_such(db: Session, settings: Settings) -> None:
    parent = make_parent(db, settings)
    parent.recipe = make_recipe(method="reward", adapter=LORA)
    message = "The adapter of run 1 belongs to a model that writes no text."
    again = make_recipe(method="reward", **continuation.start_values(parent))

    assert refusals(db) == [(message, {"adapter": {"continue_from": None}})]
    assert continuation.check(db, again) == []
    parent.recipe = make_recipe(method="reward", adapter={"kind": "full"})
    assert continuation.start_url(parent) == ""


def test_rank_stabilised_pissa_must_be_merged(db: Session, settings: Settings) -> None:
    parent = make_parent(db, settings, variant="pissa", use_rslora=True)

    assert continuation.start_url(parent) == ""
    assert "alpha is not a whole number" in refusals(db)[0][0]


@pytest.mark.parametrize(
    ("adapter", "named", "repair"),
    [
        ({"r": 8}, "r 4", {"r": 4}),
        ({"r": 8, "lora_alpha": 1}, "r 4, lora_alpha 8", {"r": 4, "lora_alpha": 8}),
        ({"variant": "dora"}, "variant plain", {"variant": "plain"}),
        ({"last_layers": 1}, "last_layers None", {"last_layers": None}),
    ],
)
def test_other_shape_is_refused_with_its_repair(
    adapter: dict[str, Any], named: str, repair: dict[str, Any], db: Session, settings: Settings
) -> None:
    make_parent(db, settings)

    message = f"The adapter of run 1 has other settings: {named}."
    assert refusals(db, **adapter) == [(message, {"adapter": repair})]


def test_other_base_model_is_refused(db: Session, settings: Settings, tmp_path: Path) -> None:
    parent = make_parent(db, settings)
    other = shutil.copytree(models.require(db, "starter"), tmp_path / "other")
    recipe = make_recipe(**continuation.start_values(parent) | {"base_model": str(other)})

    assert [one.repair for one in continuation.check(db, recipe)] == [{"base_model": "starter"}]


def test_run_without_result_is_refused(db: Session, settings: Settings) -> None:
    assert refusals(db)[0][0] == "There is no run-1 to continue from."
    run = make_running(db, adapter=LORA)
    assert refusals(db)[0][0] == "Run 1 has no result to continue from."
    run_commands.cancel(db, run.id or 0)
    parent = make_parent(db, settings)
    bulk_actions.move_to_trash(db, [parent.id or 0])
    assert refusals(db, continue_from="run-2")[0][0] == "There is no run-2 to continue from."


def test_refused_recipe_cannot_be_submitted(db: Session, settings: Settings) -> None:
    make_parent(db, settings)
    with pytest.raises(InvalidError) as refused:
        make_run(db, adapter=LORA | {"continue_from": "run-1", "r": 8})

    assert refused.value.param == "adapter.r"


def test_run_gets_a_copy_of_the_adapter(db: Session, settings: Settings) -> None:
    parent = make_parent(db, settings)
    run = runs.get(db, make_run(db, adapter=LORA | {"continue_from": "run-1"}).id or 0)
    folder = RunDir(settings.runs / str(run.id))
    run_dir_setup.write_run_dir(db, run, folder, settings)
    spec = JobSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))

    assert spec.adapter == folder.parent_adapter
    assert sorted(path.name for path in folder.parent_adapter.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    shutil.rmtree(settings.runs / str(parent.id))
    run.resumes = True
    run_dir_setup.write_run_dir(db, run, folder, settings)
    run.resumes = False
    with pytest.raises(InvalidError, match="The adapter of run-1 has been deleted"):
        run_dir_setup.write_run_dir(db, run, folder, settings)


def test_lineage_follows_adapters_and_models(db: Session, settings: Settings) -> None:
    first = make_parent(db, settings)
    second = make_run(db, adapter=LORA | {"continue_from": "run-1"})
    model = models.add(db, "run-2", models.require(db, "starter"), kind="run")
    model.run_id = second.id
    third = make_run(db, base_model="run-2")

    assert [run.id for run in continuation.ancestors(db, third)] == [second.id, first.id]
    assert [run.id for run in continuation.children(db, first)] == [second.id]
    assert [run.id for run in continuation.children(db, second)] == [third.id]
    assert continuation.ancestors(db, first) == []
    assert [run.id for run in continuation.trained_by(db, model)] == [second.id, first.id]


CHANGED = {"rope_type": "yarn", "rope_factor": 4.0, "new_tokens": "<a>, <b>"}


def test_adapter_continues_on_the_base_it_was_trained_on(db: Session, settings: Settings) -> None:
    """With its positions and its tokens."""
    parent = make_parent(db, settings)
    parent.recipe = make_recipe(adapter=LORA, model=CHANGED)
    values = continuation.start_values(parent)
    other = {"rope_type": "yarn", "rope_factor": 2.0, "new_tokens": "<a>"}
    refused = continuation.check(db, make_recipe(**values | {"model": other}))

    assert continuation.check(db, make_recipe(**values)) == []
    assert [(one.message, one.repair) for one in refused] == [
        (
            "The adapter of run 1 was trained with other positions: yarn 4.",
            {"model": {"rope_type": "yarn", "rope_factor": 4.0}},
        ),
        (
            "The adapter of run 1 has its own tokens: <a>, <b>.",
            {"model": {"new_tokens": "<a>, <b>"}},
        ),
    ]


def test_adapter_without_new_tokens_can_get_some(db: Session, settings: Settings) -> None:
    values = continuation.start_values(make_parent(db, settings))

    assert continuation.check(db, make_recipe(**values | {"model": {"new_tokens": "<a>"}})) == []


def test_changed_model_is_not_changed_again(db: Session) -> None:
    """A full fine-tune has saved its positions and tokens, which its model has already."""
    parent = make_finished_run(db, adapter={"kind": "full"}, model=CHANGED)

    assert continuation.start_values(parent) == {
        "base_model": "run-1",
        "model": {"rope_type": "none", "rope_factor": 2.0, "new_tokens": None},
    }
