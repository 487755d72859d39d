"""Token preview: a row's tokens, in the experiment form and on the dataset's own page."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from studio.db.session import read_session
from studio.services.datasets import datasets
from studio.web.datasets import token_preview
from studio.web.forms import choices
from studio.web.http.deps import Config, PostedForm
from studio.web.rendering.render import block, page, wants_fragment

router = APIRouter(include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]


@router.post("/new/sight")
def preview_form_row(request: Request, posted: PostedForm, config: Config) -> Response:
    """Show a row of the form's dataset as its model will see it; nothing is saved."""
    params = _preview_query(posted)
    panel = token_preview.load_preview(request.app.state.engine, config, params)
    return block(request, "experiments/new.html", "sight", sight=panel, wanted=params)


@router.get("/datasets/{dataset_id}/sight")
def preview_dataset_row(
    request: Request,
    dataset_id: DatasetId,
    config: Config,
    model: Annotated[str, Query(max_length=500)] = "",
) -> Response:
    with read_session(request.app.state.engine) as db:
        dataset = datasets.get(db, dataset_id)
        model_names = choices.model_names(db)
        name, version = dataset.name, dataset.version
        base, reason = ("", "") if model else choices.default_base_model(db, name)
    values = {
        "max_length": "1024",
        "chat_template": "model",
        "split": "train",
        **request.query_params,
        "dataset": name,
        "model": model or base,
    }
    context: dict[str, Any] = {
        "dataset": {"id": dataset_id, "name": name, "version": version},
        "models": model_names,
        "why_model": reason,
        "values": values,
        "sight": token_preview.load_preview(request.app.state.engine, config, values),
    }
    if wants_fragment(request):
        return block(request, "datasets/token_preview.html", "sight", **context)
    return page(request, "datasets/token_preview.html", **context)


def _preview_query(posted: Mapping[str, Any]) -> dict[str, Any]:
    """Read the preview's parameters from a posted recipe form."""
    data, preview_fields, optimisation = (
        _form_section(posted, name) for name in ("data", "look", "optimisation")
    )
    params = {
        "model": posted.get("base_model"),
        "dataset": posted.get("dataset"),
        "row": preview_fields.get("row"),
        "step": preview_fields.get("step"),
        "max_length": data.get("max_length"),
        "chat_template": data.get("chat_template"),
        "packing": data.get("packing"),
        "validation_share": data.get("validation_share"),
        "seed": optimisation.get("seed"),
    }
    return {name: value for name, value in params.items() if value not in (None, "")}


def _form_section(posted: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = posted.get(name)
    return section if isinstance(section, dict) else {}
