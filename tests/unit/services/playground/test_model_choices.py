"""What a column of the playground refers to, and which models it offers."""

import json
import shutil
from dataclasses import replace
from typing import Any

import pytest
from sqlmodel import Session, select

from studio.db.states import RunStatus
from studio.db.tables import Model, Run
from studio.errors import ConflictError, InvalidError, NotFoundError
from studio.hardware import Hardware
from studio.services.models import models
from studio.services.playground import model_choices, number_formats
from studio.services.playground.model_choices import ModelReference, parse_reference
from studio.services.runs import states
from studio.settings import Settings
from tests.support import evaluated_runs, factories
from tests.unit.weights import safetensors_folders

BARE = Hardware(processor="P", cores=2, memory_bytes=2**34, native_bf16=True)
EQUIPPED = replace(BARE, packages=frozenset({"bitsandbytes"}))


@pytest.fixture
def run(db: Session, settings: Settings) -> Run:
    """Make a finished LoRA run with its adapter and a checkpoint."""
    run = factories.make_finished_run(db, "plurals")
    folder = evaluated_runs.lay_out(db, settings, run)
    (folder.checkpoints / "checkpoint-5").mkdir(parents=True)
    return run


def add_model(db: Session, settings: Settings, name: str, **config: Any) -> Model:  # noqa: ANN401 -- whatever a config holds
    folder = settings.models / name
    safetensors_folders.write(folder, {"a": ("F32", [1.0])}, **config)
    return models.add(db, name, str(folder), kind="folder")


@pytest.mark.parametrize("text", ["model:1", "base:7", "run:7", "run:7:20", "run:7:0"])
def test_reference_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_reference(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "7", "run:", "run:0", "run:-1", "model:1:5", "base:1:5", "run:1:x", "run:7 ", "9" * 9],
)
def test_other_texts_name_no_model(text: str) -> None:
    with pytest.raises(InvalidError, match="names no model"):
        parse_reference(text)


@pytest.mark.usefixtures("run")
def test_each_reference_loads_its_model(db: Session, settings: Settings) -> None:
    starter = db.exec(select(Model)).one()
    loaded = {
        text: model_choices.get_model(db, settings.runs, parse_reference(text))
        for text in (f"model:{starter.id}", "base:1", "run:1", "run:1:5")
    }

    assert [model.name for model in loaded.values()] == [
        "starter",
        "starter",
        "ft:starter:local::1",
        "ft:starter:local::1:ckpt-step-5",
    ]
    base, _of_run, result, checkpoint = loaded.values()
    assert (base.served.model, base.served.adapter) == (starter.location, "")
    assert result.served.adapter == checkpoint.served.adapter == str(settings.runs / "1/artifacts")
    assert checkpoint.served.weights.endswith("checkpoint-5")
    assert len({model.served.memory_key for model in loaded.values()}) == 1


def test_full_models_share_no_memory(db: Session, settings: Settings) -> None:
    evaluated_runs.lay_out(db, settings, factories.make_finished_run(db, adapter={"kind": "full"}))
    base, result = (
        model_choices.get_model(db, settings.runs, parse_reference(text))
        for text in ("base:1", "run:1")
    )

    assert base.served.memory_key != result.served.memory_key


def test_column_without_model_says_why(db: Session, settings: Settings, run: Run) -> None:
    expected = {
        "run:9": ("", "Run 9 does not exist."),
        "model:9": ("", "Model 9 does not exist."),
        f"run:{run.id}:4": ("plurals", "The checkpoint of step 4 was not kept."),
    }

    for text, (name, reason) in expected.items():
        choice = model_choices.describe(db, settings.runs, parse_reference(text))
        assert (choice.name, choice.reason) == (name, reason)
        assert choice.hint
    described = model_choices.describe(db, settings.runs, parse_reference("run:1:5"))
    assert (described.name, described.reason) == ("plurals", "")


def test_base_models_that_cannot_answer_come_last_with_reason(
    db: Session, settings: Settings
) -> None:
    add_model(db, settings, "classifies", architectures=["LlamaForSequenceClassification"])
    add_model(db, settings, "rewrites", model_type="t5", is_encoder_decoder=True)
    add_model(db, settings, "coded", auto_map={"AutoModelForCausalLM": "own.Own"})
    db.add(Model(name="far", kind="hub", location="org/far"))
    db.add(Model(name="run-7", kind="run", location=str(settings.models / "starter"), run_id=None))
    db.flush()
    first, *others = model_choices.list_base_models(db)
    reasons = {choice.name: choice.reason for choice in others}

    assert (first.name, first.reason) == ("starter", "")
    assert "classifier" in reasons["classifies"]
    assert "encoder-decoder" in reasons["rewrites"]
    assert "code" in reasons["coded"]
    assert reasons["far"] == "The files of far are not on this machine."
    assert all(choice.hint for choice in others)
    assert [choice.name for choice in model_choices.list_base_models(db, "CLASS")] == ["classifies"]
    with pytest.raises(ConflictError, match="classifier"):
        model_choices.get_model(db, settings.runs, others[-1].reference)


@pytest.mark.usefixtures("run")
def test_runs_are_found_by_name_and_number(db: Session, settings: Settings) -> None:
    factories.make_running(db, "plurals again")
    factories.make_finished_run(db, "scores").recipe = factories.make_recipe(method="reward")
    listed = model_choices.list_runs(db, settings.runs)

    assert [row.run.id for row in listed] == [1, 3, 2]
    assert [str(choice.reference) for choice in listed[0].choices] == ["run:1", "run:1:5"]
    assert listed[1].reason == "The model of this run reads text and writes none."
    assert listed[2].reason == "This run has no model yet."
    assert [row.run.id for row in model_choices.list_runs(db, settings.runs, "PLURALS")] == [1, 2]
    assert [row.run.id for row in model_choices.list_runs(db, settings.runs, "#3")] == [3]
    assert model_choices.list_runs(db, settings.runs, "100%") == []


def test_paused_run_offers_its_checkpoints(db: Session, settings: Settings) -> None:
    paused = factories.make_running(db)
    folder = evaluated_runs.lay_out(db, settings, paused)
    (folder.checkpoints / "checkpoint-7").mkdir(parents=True)
    for status in (RunStatus.STOPPING, RunStatus.PAUSED):
        states.move(db, paused, status)
    (row,) = model_choices.list_runs(db, settings.runs)

    assert [choice.reference for choice in row.choices] == [ModelReference("run", 1, 7)]
    assert model_choices.get_model(db, settings.runs, row.choices[0].reference).api == "none"


def test_playground_begins_with_newest_run_beside_its_base(db: Session, settings: Settings) -> None:
    def suggested() -> list[str]:
        return [str(reference) for reference in model_choices.suggest(db, settings.runs)]

    assert suggested() == ["model:1"]
    evaluated_runs.lay_out(db, settings, factories.make_finished_run(db))
    factories.make_running(db)
    assert suggested() == ["base:1", "run:1"]
    shutil.rmtree(settings.runs)
    (settings.models / "starter" / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": ["BertForMaskedLM"]})
    )
    assert suggested() == []


@pytest.mark.usefixtures("run")
def test_formats_are_those_the_service_loads(db: Session, settings: Settings) -> None:
    model = model_choices.get_model(db, settings.runs, parse_reference("run:1"))
    names = [choice.name for choice in number_formats.list_formats(model, EQUIPPED)]
    rounded = number_formats.with_format(model, "bfloat16", BARE)

    assert names == ["", "bfloat16", "float16", "int8", "nf4"]
    assert (rounded.served.base_dtype, rounded.served.precision) == ("bfloat16", "bf16")
    assert (rounded.served.rounded_to, rounded.api) == ("bfloat16", "other")
    assert rounded.served.memory_key != model.served.memory_key
    assert number_formats.with_format(model, "native", BARE) is model
    refused = {choice.name: choice.reason for choice in number_formats.list_formats(model, BARE)}
    assert "not installed" in refused["nf4"]
    with pytest.raises(InvalidError, match="cannot be used here"):
        number_formats.with_format(model, "nf4", BARE)
    with pytest.raises(InvalidError, match="no number format int2"):
        number_formats.with_format(model, "int2", BARE)


def test_quantised_run_answers_as_trained_or_as_saved(db: Session, settings: Settings) -> None:
    quantised = factories.make_finished_run(db, adapter={"kind": "lora", "base_dtype": "float16"})
    evaluated_runs.lay_out(db, settings, quantised)
    model = model_choices.get_model(db, settings.runs, parse_reference("run:1"))
    titles = [choice.title for choice in number_formats.list_formats(model, EQUIPPED)]
    saved = number_formats.with_format(model, "native", BARE)

    assert titles[:3] == ["Rounded to float16", "As saved", "Rounded to bfloat16"]
    assert number_formats.with_format(model, "float16", BARE) is model
    assert saved.served.rounded_to == ""


def test_checkpoint_of_full_model_has_one_format(db: Session, settings: Settings) -> None:
    run = factories.make_finished_run(db, adapter={"kind": "full"})
    folder = evaluated_runs.lay_out(db, settings, run)
    (folder.checkpoints / "checkpoint-5").mkdir(parents=True)
    model = model_choices.get_model(db, settings.runs, parse_reference("run:1:5"))

    assert [choice.name for choice in number_formats.list_formats(model, EQUIPPED)] == [""]
    with pytest.raises(InvalidError, match="only in the format it was saved in"):
        number_formats.with_format(model, "bfloat16", BARE)


def test_run_of_column_is_that_of_its_model(db: Session, settings: Settings, run: Run) -> None:
    db.add(Model(name="run-1", kind="run", location=str(settings.models), run_id=run.id))
    db.flush()
    found = {
        text: model_choices.find_run(db, parse_reference(text))
        for text in ("model:1", "model:2", "base:1", "run:1:5", "run:9", "model:9")
    }

    assert [one.id if one else None for one in found.values()] == [None, 1, 1, 1, None, None]
    with pytest.raises(NotFoundError):
        model_choices.get_model(db, settings.runs, parse_reference("run:9"))
