"""REST routes that import recipes from the files of other tools, and write them as scripts."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse
from pydantic import Field

from studio.services import experiments
from studio.services.recipe_imports import importing
from studio.services.recipe_imports.importing import ImportedKey
from studio.services.recipe_imports.reading import MAX_CHARS
from studio.services.recipe_imports.studio_names import StudioNames
from studio.services.recipe_scripts import experiment_scripts
from studio.web.api import conventions as api
from studio.web.http.deps import DB, ReadDB

router = APIRouter(route_class=api.ApiRoute, prefix="/api/v1", tags=["experiments"])


class RecipeFile(api.Body):
    text: Annotated[str, Field(min_length=1, max_length=MAX_CHARS)]
    """The file of LLaMA-Factory, Axolotl, H2O LLM Studio, TRL or OpenAI: YAML or JSON."""
    method: Annotated[str, Field(max_length=50)] = ""
    """The method to use instead of the one that the file is for."""


class ImportedKeyOut(api.Out):
    key: str
    value: str
    """As the file has it, in one line."""
    settings: dict[str, str]
    """The settings that it became, by their dotted names."""
    note: str
    """What is different here, or what to do."""


class ImportedRecipeOut(api.Out):
    """A recipe, and what became of each key of the file. Nothing is stored."""

    tool: str
    method: str
    name: str
    """What the experiment is called in the file; empty if it has no name."""
    recipe: dict[str, Any]
    """The recipe, without a dataset or a base model if these are still to be chosen."""
    mapped: list[ImportedKeyOut]
    """Keys that mean the same here."""
    different: list[ImportedKeyOut]
    """Keys that mean something else here, or are done in another way."""
    absent: list[ImportedKeyOut]
    """Keys that do not exist here."""
    assumed: list[ImportedKeyOut]
    """What the tool does about keys that the file does not have."""
    remarks: list[str]


@router.post("/recipes/import")
def import_recipe(file: RecipeFile, db: ReadDB) -> ImportedRecipeOut:
    """Show the recipe that another tool's file describes. Nothing is stored."""
    imported = importing.import_text(file.text, StudioNames(db), file.method)
    return ImportedRecipeOut(
        tool=imported.tool.title,
        method=imported.method.name,
        name=imported.name,
        recipe=dict(imported.values),
        mapped=_keys_out(imported.mapped),
        different=_keys_out(imported.different),
        absent=_keys_out(imported.absent),
        assumed=_keys_out(imported.assumed),
        remarks=list(imported.remarks),
    )


@router.get("/experiments/{experiment_id}/script", response_class=PlainTextResponse)
def script(experiment_id: api.Id, db: DB) -> str:
    """Return a Python script that trains an experiment's recipe with TRL alone."""
    return experiment_scripts.of_experiment(db, experiments.get(db, experiment_id))


def _keys_out(keys: Sequence[ImportedKey]) -> list[ImportedKeyOut]:
    return [
        ImportedKeyOut(key=one.key, value=one.value, settings=dict(one.settings), note=one.note)
        for one in keys
    ]
