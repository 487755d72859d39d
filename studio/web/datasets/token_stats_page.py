"""How long the rows of a data set are, on screen."""

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
from studio.web.http.deps import DB, Config, Posted
from studio.web.rendering.render import asked_by_htmx, block, go, page

router = APIRouter(prefix="/datasets/{dataset_id}/stats", include_in_schema=False)

DatasetId = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("")
def show(request: Request, dataset_id: DatasetId, db: DB, config: Config) -> Response:
    """Show what was counted, or how to have it counted. Another cut needs no other counting."""
    context = _context(db, config, datasets.get(db, dataset_id), request)
    if not asked_by_htmx(request):
        return page(request, "datasets/token_stats.html", **context)
    answer = block(request, "datasets/token_stats.html", "stats", **context)
    answer.headers["HX-Replace-Url"] = f"{request.url.path}?{urlencode(context['values'])}"
    return answer


@router.get("/counted")
def counted(request: Request, dataset_id: DatasetId) -> Response:
    """Come here when a chore has counted: the page is another one now."""
    return go(request, f"/datasets/{dataset_id}/stats?{request.url.query}")


@router.post("")
def count(
    request: Request, dataset_id: DatasetId, posted: Posted, db: DB, config: Config
) -> Response:
    wanted = shown.read(posted)
    token_stats.enqueue(db, config, shown.which(db, datasets.get(db, dataset_id), wanted))
    return go(request, f"/datasets/{dataset_id}/stats?{wanted.query}")


def _context(db: Session, config: Settings, dataset: Dataset, request: Request) -> dict[str, Any]:
    known = choices.model_names(db)
    values = {
        "version": str(dataset.version or ""),
        "model": "",
        "max_length": "1024",
        "chat_template": "model",
        **request.query_params,
    }
    base, why = ("", "") if values["model"] else choices.base_model_for(db, dataset.name)
    values["model"] = values["model"] or base
    found = shown.look(db, dataset, values)
    number = found.wanted.version if found.wanted else None
    row = row_browser.turn(
        config.datasets, shown.version(db, dataset, number), row_browser.read(values)
    )
    values |= {"split": row.part, "row": str(row.number), "q": row.words}
    values.pop("step", None)
    return {
        "dataset": dataset,
        "models": known,
        "why_model": why,
        "values": values,
        "shown": found,
        "leaf": row,
    }
