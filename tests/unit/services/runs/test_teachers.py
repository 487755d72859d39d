"""Teachers are found where base models are, and refused with a reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from sqlmodel import Session

from studio import starter
from studio.errors import ConflictError, InvalidError
from studio.methods import AnyRecipe
from studio.protocols.run_dir import JobSpec, RunDir
from studio.services.datasets import versions
from studio.services.estimates import measurements, reference_runs
from studio.services.models import models, remote_code_trust
from studio.services.runs import run_commands, runs, start_checks, teachers
from studio.settings import Settings
from studio.worker.processes import run_dir_setup
from studio.worker.processes.launcher import LaunchSpec
from tests.support.factories import make_finished_run, make_recipe, make_run
from tests.unit.weights import safetensors_folders

PARAM = "distillation.teacher"
TOKENIZER = Path(starter.__file__).parent / "model" / "tokenizer.json"


def recipe(teacher: Path | str | None, **changes: Any) -> AnyRecipe:  # noqa: ANN401 -- settings
    name = None if teacher is None else str(teacher)
    return make_recipe(method="distil", distillation={"teacher": name}, **changes)


def copy_starter(db: Session, folder: Path) -> Path:
    """Copy the starter's config, with a weight and the tokenizer that it comes with."""
    safetensors_folders.write(folder, {"a": ("F32", [1.0, 2.0])})
    shutil.copytree(models.require(db, "starter"), folder, dirs_exist_ok=True)
    shutil.copy(TOKENIZER, folder)
    return folder


def refusal(db: Session, teacher: Path | str | None) -> tuple[str, str]:
    """Return why a recipe with a teacher is refused, and which setting is to blame."""
    with pytest.raises(InvalidError) as refused:
        runs.check(db, recipe(teacher))
    assert refused.value.hint
    return refused.value.message, refused.value.param


def test_a_model_with_the_same_tokenizer_can_teach(db: Session, tmp_path: Path) -> None:
    runs.check(db, recipe(copy_starter(db, tmp_path / "better")))
    models.add_folder(db, str(tmp_path / "better"), "mine")
    runs.check(db, recipe("mine"))


def test_teacher_must_be_chosen(db: Session) -> None:
    assert refusal(db, None) == ("There is no teacher to learn from.", PARAM)


def test_base_model_cannot_teach_itself(db: Session) -> None:
    message = "The teacher is the base model itself, so there is nothing to learn."
    assert refusal(db, "starter") == (message, PARAM)
    assert refusal(db, models.require(db, "starter")) == (message, PARAM)


def test_missing_teacher_is_refused(db: Session, tmp_path: Path) -> None:
    assert refusal(db, "nothing") == ("There is no model named nothing.", PARAM)
    assert refusal(db, tmp_path / "gone") == (
        f"{tmp_path / 'gone'} does not contain a model.",
        PARAM,
    )


def test_deleted_teacher_is_refused(db: Session, tmp_path: Path) -> None:
    models.add_folder(db, str(copy_starter(db, tmp_path / "better")), "mine")
    shutil.rmtree(tmp_path / "better")

    message, param = refusal(db, "mine")
    assert ("no longer exists" in message or "cannot be read" in message, param) == (True, PARAM)


def test_adapter_of_a_run_must_be_merged_to_teach(db: Session) -> None:
    parent = make_finished_run(db, adapter={"kind": "lora"})
    with pytest.raises(InvalidError) as refused:
        runs.check(db, recipe(f"run-{parent.id}"))

    assert refused.value.param == PARAM
    assert refused.value.hint.startswith(f"Run {parent.id} trained an adapter: merge it")


def test_other_tokens_are_refused_before_the_start(db: Session, tmp_path: Path) -> None:
    own, folder = (copy_starter(db, tmp_path / name) for name in ("own", "other"))
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["added_tokens"].append({"id": 99_999, "content": "<more>", "special": True})
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")

    (refused,) = start_checks.check_model_and_data(db, recipe(folder, base_model=str(own)))
    assert refused.message.startswith("The teacher has another tokenizer than the base model")
    assert ("such as '<more>'" in refused.message, refused.param) == (True, PARAM)
    assert start_checks.check_model_and_data(db, recipe(own, base_model="starter")) == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "bert", "architectures": ["BertForMaskedLM"]}, "This is an encoder"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "saved in a quantised format",
        ),
    ],
)
def test_models_that_cannot_teach_are_refused(
    config: dict[str, Any], message: str, db: Session, tmp_path: Path
) -> None:
    folder = safetensors_folders.write(tmp_path / "model", {"a": ("F32", [1.0, 2.0])}, **config)

    found, param = refusal(db, folder)
    assert (message in found, param) == (True, PARAM)


def test_plain_text_has_no_prompts_to_answer(db: Session, tmp_path: Path) -> None:
    folder = copy_starter(db, tmp_path / "better")
    version = versions.require(db, "starter")
    version.kind = "text"
    db.add(version)
    db.flush()
    own = {"teacher": str(folder), "answers": "student"}
    asked = make_recipe(method="distil", distillation=own)
    (refused,) = teachers.check(db, asked)

    assert refused.message == "Plain text has no prompts that the student could answer."
    assert refused.repair == {"distillation": {"answers": "given"}}
    assert teachers.check(db, recipe(folder)) == []


def write_code(folder: Path) -> Path:
    """Make a model need code of its own."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["auto_map"] = {"AutoModelForCausalLM": "own.Model"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "own.py").write_text("class Model: ...", encoding="utf-8")
    return folder


def test_code_of_a_teacher_needs_consent(db: Session, settings: Settings, tmp_path: Path) -> None:
    folder = write_code(copy_starter(db, tmp_path / "odd"))
    message, param = refusal(db, folder)
    assert ("needs to run custom code" in message, param) == (True, PARAM)

    model = models.add_folder(db, str(folder), "odd")
    assert refusal(db, "odd")[1] == PARAM
    remote_code_trust.grant(db, model, remote_code_trust.consent_revision(model))
    run = make_run(db, method="distil", distillation={"teacher": "odd"})
    folder_of_run = RunDir(settings.runs / str(run.id))
    run_dir_setup.write_run_dir(db, run, folder_of_run, settings)
    spec = JobSpec.model_validate_json(folder_of_run.job.read_text(encoding="utf-8"))
    assert spec.teacher_code == remote_code_trust.allowed_code_hash(model) != ""
    assert (spec.teacher, spec.code) == (str(folder), "")


def test_other_runs_have_no_teacher(db: Session, settings: Settings) -> None:
    run = make_run(db)
    folder = RunDir(settings.runs / str(run.id))
    run_dir_setup.write_run_dir(db, run, folder, settings)
    spec = JobSpec.model_validate_json(folder.job.read_text(encoding="utf-8"))

    assert (spec.teacher, spec.teacher_code) == ("", "")


def test_teacher_on_the_hub_is_downloaded_with_the_token(db: Session, settings: Settings) -> None:
    own = settings.model_copy(update={"hub_token": SecretStr("x")})
    run = make_run(db, method="distil", distillation={"teacher": "someone/large"})
    folder = RunDir(settings.runs / str(run.id))
    asked = LaunchSpec(run_id=run.id or 0, attempt=1, folder=folder)
    launched = run_dir_setup.prepare_launch(db, run, asked, own)

    assert JobSpec.model_validate_json(folder.job.read_text()).teacher == "someone/large"
    assert launched.secrets["HF_TOKEN"] == "x"  # noqa: S105 -- no real one


def test_removed_teacher_is_named_at_launch(
    db: Session, settings: Settings, tmp_path: Path
) -> None:
    model = models.add_folder(db, str(copy_starter(db, tmp_path / "better")), "mine")
    run = make_run(db, method="distil", distillation={"teacher": "mine"})
    with pytest.raises(ConflictError, match=f"Run {run.id} needs mine and has not ended"):
        models.remove(db, model.id or 0, settings.models)
    run_commands.cancel(db, run.id or 0)
    models.remove(db, model.id or 0, settings.models)
    with pytest.raises(InvalidError, match="There is no model named mine") as refused:
        run_dir_setup.write_run_dir(db, run, RunDir(settings.runs / str(run.id)), settings)
    assert refused.value.param == PARAM


def test_teacher_counts_in_calibrations_and_references(
    db: Session, settings: Settings, tmp_path: Path
) -> None:
    first, second = (copy_starter(db, tmp_path / name) for name in ("one", "two"))
    params = measurements.task_params(db, recipe(first), settings, "x")

    assert JobSpec.model_validate_json(params["job"]).teacher == str(first)
    assert measurements.task_subject(db, recipe(first)) != measurements.task_subject(
        db, recipe(second)
    )
    speeds = {reference_runs._speed_key(recipe(folder)) for folder in (first, second, None)}
    assert len(speeds) == 3


def test_checks_of_many_recipes_tell_teachers_apart(db: Session, tmp_path: Path) -> None:
    find_error = runs.make_checker(db)
    better = copy_starter(db, tmp_path / "better")

    assert find_error(recipe(better)) is None
    assert find_error(recipe("starter")) is not None
    assert start_checks.check_model_and_data(db, recipe(better)) == []
