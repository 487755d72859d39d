"""The mapping page: the detected format, each column's role, and a preview of the rows."""

from typing import Annotated
from urllib.parse import urlencode, urlsplit

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from studio.errors import InvalidError
from studio.intake.mapping import FileOptions
from studio.services.datasets import dataset_builds, datasets
from studio.web.datasets import mapping_form
from studio.web.datasets.mapping_view import MappingView
from studio.web.http.deps import Config, PostedForm, ReadDB
from studio.web.http.multipart_upload import parse_file_options, read_limits
from studio.web.rendering.render import block, page, redirect, refused_form, wants_fragment

router = APIRouter(prefix="/datasets/{dataset_id}/mapping", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]
AlternativeIndex = Annotated[int | None, Query(alias="as", ge=0, le=20)]

Option = Annotated[str, Query(max_length=40)]


def _file_options(
    encoding: Option = "", sheet: Option = "", separator: Option = "", header: Option = ""
) -> FileOptions:
    """Return how the user chose to read the file itself."""
    return parse_file_options(
        {"encoding": encoding, "sheet": sheet, "separator": separator, "header": header}
    )


FileOptionParams = Annotated[FileOptions, Depends(_file_options)]

TEMPLATE = "datasets/mapping.html"
_EXPERIMENT_FORM = "/new"
_MAX_RETURN_URL = 8000


def _return_url(text: object) -> str:
    """Return the URL of the experiment form to go back to; empty for any other URL."""
    url = str(text or "")
    is_form = urlsplit(url).path == _EXPERIMENT_FORM and url.startswith(_EXPERIMENT_FORM)
    return url if is_form and len(url) <= _MAX_RETURN_URL else ""


def _url_with_dataset(url: str, name: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'dataset': name})}"


@router.get("")
def show(
    request: Request,
    dataset_id: DatasetId,
    db: ReadDB,
    config: Config,
    options: FileOptionParams,
    chosen: AlternativeIndex = None,
) -> Response:
    """Show the requested mapping, else the one in use, else the detected one."""
    view = MappingView(db, config, datasets.get(db, dataset_id))
    context = view.initial_context(chosen, options)
    return page(request, TEMPLATE, then=_return_url(request.query_params.get("then")), **context)


@router.post("/form")
def update_form(
    request: Request, dataset_id: DatasetId, posted: PostedForm, db: ReadDB, config: Config
) -> Response:
    """Redraw the form after a change of its fields: a shape, a split, a filter."""
    view = MappingView(db, config, datasets.get(db, dataset_id))
    context = view.form_context(mapping_form.apply_action(mapping_form.parse_form(posted), posted))
    context["then"] = _return_url(posted.get("then"))
    if wants_fragment(request):
        return block(request, TEMPLATE, "form", **context)
    return page(request, TEMPLATE, **context)


@router.post("/preview")
def preview(
    request: Request, dataset_id: DatasetId, posted: PostedForm, db: ReadDB, config: Config
) -> Response:
    """Show the first rows as the unsaved form maps them; nothing is saved."""
    view = MappingView(db, config, datasets.get(db, dataset_id))
    outcome = view.preview(mapping_form.parse_form(posted))
    return block(request, TEMPLATE, "preview", outcome=outcome, base=view.address)


@router.post("")
def save_mapping(
    request: Request, dataset_id: DatasetId, posted: PostedForm, db: ReadDB, config: Config
) -> Response:
    """Build a version from the whole file with this mapping; new runs train on it."""
    form = mapping_form.parse_form(posted)
    try:
        result = dataset_builds.rebuild(
            request.app.state.engine,
            config.datasets,
            dataset_id,
            form.to_mapping(),
            read_limits(config),
        )
    except (ValidationError, InvalidError) as error:
        view = MappingView(db, config, datasets.get(db, dataset_id))
        context = view.form_context(form, error)
        return refused_form(request, TEMPLATE, then=_return_url(posted.get("then")), **context)
    url = _return_url(posted.get("then"))
    if url and result.version:
        name = datasets.get(db, dataset_id).name
        return redirect(request, _url_with_dataset(url, name))
    notice = "" if result.is_new else "?told=same"
    return redirect(request, f"/datasets/{dataset_id}{notice}")
