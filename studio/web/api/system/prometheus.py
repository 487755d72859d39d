"""The `/metrics` endpoint for Prometheus."""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from studio.services.operations import prometheus_metrics
from studio.web.http.deps import DB, Config

router = APIRouter(include_in_schema=False)


@router.get("/metrics")
def metrics(request: Request, db: DB, config: Config) -> PlainTextResponse:
    from studio.web.api.system import prometheus_text  # noqa: PLC0415 -- heavy import

    text = prometheus_text.render_text(
        prometheus_metrics.collect(db), request.app.state.traffic, config.database
    )
    return PlainTextResponse(text, media_type=prometheus_text.CONTENT_TYPE)
