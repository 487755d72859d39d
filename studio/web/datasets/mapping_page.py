"""The mapping screen: what was seen in a file, what each column is, and what its rows become."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from studio.errors import InvalidError
from studio.intake.mapping import FileOptions
from studio.services.datasets import dataset_builds, datasets
from studio.web.datasets import mapping_form
from studio.web.datasets.mapping_view import Screen
from studio.web.http.deps import Config, Posted, Reads
from studio.web.http.multipart_upload import file_options, limits_of
from studio.web.rendering.render import asked_by_htmx, block, go, page

router = APIRouter(prefix="/datasets/{dataset_id}/mapping", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]
Alternative = Annotated[int | None, Query(alias="as", ge=0, le=20)]

Option = Annotated[str, Query(max_length=40)]


def _options(
    encoding: Option = "", sheet: Option = "", separator: Option = "", header: Option = ""
) -> FileOptions:
    """Return how a person has chosen to read the file itself."""
    return file_options(
        {"encoding": encoding, "sheet": sheet, "separator": separator, "header": header}
    )


Options = Annotated[FileOptions, Depends(_options)]

TEMPLATE = "datasets/mapping.html"


@router.get("")
def show(
    request: Request,
    dataset_id: DatasetId,
    db: Reads,
    config: Config,
    options: Options,
    chosen: Alternative = None,
) -> Response:
    """Begin with the reading in use, else with what was seen, or with what is asked for."""
    screen = Screen(db, config, datasets.get(db, dataset_id))
    return page(request, TEMPLATE, **screen.begin(chosen, options))


@router.post("/form")
def change(
    request: Request, dataset_id: DatasetId, posted: Posted, db: Reads, config: Config
) -> Response:
    """Show the form again after a change of what it asks for: a shape, a part, a filter."""
    screen = Screen(db, config, datasets.get(db, dataset_id))
    context = screen.show(mapping_form.changed(mapping_form.posted(posted), posted))
    if asked_by_htmx(request):
        return block(request, TEMPLATE, "form", **context)
    return page(request, TEMPLATE, **context)


@router.post("/preview")
def preview(
    request: Request, dataset_id: DatasetId, posted: Posted, db: Reads, config: Config
) -> Response:
    """Show what a form as it stands makes of the first rows; nothing is written."""
    screen = Screen(db, config, datasets.get(db, dataset_id))
    return block(request, TEMPLATE, "preview", outcome=screen.outcome(mapping_form.posted(posted)))


@router.post("")
def use(
    request: Request, dataset_id: DatasetId, posted: Posted, db: Reads, config: Config
) -> Response:
    """Read the whole file as the form says, and let new runs learn from what that gives."""
    form = mapping_form.posted(posted)
    try:
        made = dataset_builds.rebuild(
            request.app.state.engine,
            config.datasets,
            dataset_id,
            form.mapping(),
            limits_of(config),
        )
    except (ValidationError, InvalidError) as error:
        screen = Screen(db, config, datasets.get(db, dataset_id))
        return _again(request, screen.show(form, error))
    told = "" if made.is_new else "?told=same"
    return go(request, f"/datasets/{dataset_id}{told}")


def _again(request: Request, context: dict[str, Any]) -> Response:
    """Show the form with what is wrong in it; a boosted form takes the whole page."""
    if asked_by_htmx(request):
        return block(request, TEMPLATE, "form", status=422, **context)
    return page(request, TEMPLATE, status=422, **context)
