"""The page that imports a recipe from another tool's file: what became of each key, then the form.

Nothing is stored: the form of a new experiment opens with the recipe.
"""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from starlette.datastructures import UploadFile

from studio.errors import InvalidError, StudioError
from studio.methods import METHODS
from studio.services.recipe_imports import importing, reading
from studio.services.recipe_imports.importing import ImportedRecipe
from studio.services.recipe_imports.studio_names import StudioNames
from studio.services.recipe_imports.tools import TOOLS
from studio.web.experiments import draft_form, new_experiment_page
from studio.web.http.deps import Config, PostedForm, ReadDB
from studio.web.rendering.render import page

router = APIRouter(prefix="/new/import", include_in_schema=False)

_MAX_BYTES = 4 * reading.MAX_CHARS
"""Of an uploaded file: as many as so many characters may take."""
_LISTS = (
    ("mapped", "Taken over", "These mean the same here."),
    ("different", "Different here", "These are done in another way, or mean something else."),
    ("absent", "Not here", "A recipe does not have these."),
    ("assumed", "Not in the file", "What the other tool does if nothing is written."),
)
"""The lists of the report, with their titles and what they are."""


async def _parse_upload(request: Request) -> dict[str, str]:
    """Return the text of a posted file, or the pasted one."""
    async with request.form(max_fields=5, max_files=1) as form:
        fields = {name: value for name, value in form.items() if isinstance(value, str)}
        file = form.get("file")
        if isinstance(file, UploadFile) and file.filename:
            fields["text"] = _decode(await file.read(_MAX_BYTES + 1))
    return fields


def _decode(content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidError(
            "This file is not text.", hint="Choose a YAML or JSON file.", param="text"
        ) from error


Upload = Annotated[dict[str, str], Depends(_parse_upload)]


@router.get("")
def new(request: Request) -> Response:
    """Show what can be imported."""
    return _show(request, text="")


@router.post("")
def preview(request: Request, posted: Upload, db: ReadDB) -> Response:
    """Show what would become of a file."""
    text = posted.get("text", "")
    try:
        if not text.strip():
            raise InvalidError("Choose a file or paste its text.", param="text")
        imported = importing.import_text(text, StudioNames(db), posted.get("method", ""))
    except StudioError as error:
        return _show(request, text=text, problem=f"{error.message} {error.hint}".strip())
    return _show(request, text=text, imported=imported)


@router.post("/form")
def open_form(request: Request, posted: PostedForm, db: ReadDB, config: Config) -> Response:
    """Open the form of a new experiment with the recipe of a file."""
    text, method = str(posted.get("text", "")), str(posted.get("method", ""))
    imported = importing.import_text(text, StudioNames(db), method)
    fresh = draft_form.draft_from_preset(db, config, imported.method, "")
    draft = replace(
        fresh,
        preset="",
        name=imported.name or fresh.name,
        notes=f"Imported from {imported.tool.title}.",
        view="all",
        values={"dataset": "", "base_model": "", **imported.values},
    )
    response = new_experiment_page.show_form(request, db, draft, {}, is_open=True)
    response.headers["HX-Push-Url"] = new_experiment_page.draft_url(draft)
    return response


def _show(
    request: Request, *, text: str, imported: ImportedRecipe | None = None, problem: str = ""
) -> Response:
    context: dict[str, Any] = {
        "text": text,
        "problem": problem,
        "imported": imported,
        "lists": _LISTS,
        "tools": [tool.title for tool in TOOLS.values()],
        "methods": METHODS.values(),
        "nothing_lost": importing.NOTHING_LOST,
        "most": reading.MAX_CHARS,
    }
    status = 422 if problem else 200
    return page(request, "experiments/import.html", status=status, **context)
