"""The token statistics of a dataset: how long its rows are."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Path, Request
from fastapi.responses import Response
from sqlmodel import Session

from studio.db.tables import Dataset
from studio.services.datasets import datasets, token_stats
from studio.settings import Settings
from studio.web.datasets import row_browser
from studio.web.datasets import token_stats as shown
from studio.web.forms import choices
from studio.web.http.deps import DB, Config, PostedForm
from studio.web.rendering.render import block, page, redirect, wants_fragment

router = APIRouter(prefix="/datasets/{dataset_id}/stats", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("")
def show(request: Request, dataset_id: DatasetId, db: DB, config: Config) -> Response:
    """Show the statistics, or a form that queues them. Another max length needs no recount."""
    context = _page_context(db, config, datasets.get(db, dataset_id), request)
    if not wants_fragment(request):
        return page(request, "datasets/token_stats.html", **context)
    response = block(request, "datasets/token_stats.html", "stats", **context)
    response.headers["HX-Replace-Url"] = f"{request.url.path}?{urlencode(context['values'])}"
    return response


@router.get("/counted")
def after_count(request: Request, dataset_id: DatasetId) -> Response:
    """Redirect to the statistics once their task has ended."""
    return redirect(request, f"/datasets/{dataset_id}/stats?{request.url.query}")


@router.post("")
def count_tokens(
    request: Request, dataset_id: DatasetId, posted: PostedForm, db: DB, config: Config
) -> Response:
    query = shown.parse_query(posted)
    token_stats.enqueue(db, config, shown.stats_selection(db, datasets.get(db, dataset_id), query))
    return redirect(request, f"/datasets/{dataset_id}/stats?{query.query}")


def _page_context(
    db: Session, config: Settings, dataset: Dataset, request: Request
) -> dict[str, Any]:
    model_names = choices.model_names(db)
    values = {
        "version": str(dataset.version or ""),
        "model": "",
        "max_length": "1024",
        "chat_template": "model",
        **request.query_params,
    }
    base, reason = ("", "") if values["model"] else choices.default_base_model(db, dataset.name)
    values["model"] = values["model"] or base
    view = shown.load_stats(db, dataset, values)
    number = view.query.version if view.query else None
    row = row_browser.find_row(
        config.datasets, shown.find_version(db, dataset, number), row_browser.parse_query(values)
    )
    values |= {"split": row.part, "row": str(row.row_number), "q": row.search_text}
    values.pop("step", None)
    return {
        "dataset": dataset,
        "models": model_names,
        "why_model": reason,
        "values": values,
        "shown": view,
        "leaf": row,
    }
