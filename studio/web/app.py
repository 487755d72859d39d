"""Assemble the web application: routers, middleware and shared state."""

import gc
from asyncio import Semaphore
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

import studio
from studio.services.accounts.oidc import PendingSignIns
from studio.services.remote.run_files import InputIndex
from studio.services.runs.hub_access import HubAccessCache
from studio.settings import Settings
from studio.web import openapi_extras
from studio.web.accounts import accounts_page
from studio.web.api import accounts, compare, endpoints, feedback, graders, openai
from studio.web.api.datasets import datasets, tokens, versions
from studio.web.api.experiments import experiments, recipes, sweeps
from studio.web.api.models import models
from studio.web.api.runs import (
    benchmarks,
    evaluations,
    event_streams,
    hub_pushes,
    judgements,
    plan,
    predictions,
    rollouts,
    run_results,
    runs,
    trackers,
)
from studio.web.api.system import hardware, remote_workers, system
from studio.web.auth import permissions
from studio.web.auth.login_throttle import LoginThrottle
from studio.web.auth.route_table import RouteTable
from studio.web.chat import answer_stream, chat_page, token_scores, try_it
from studio.web.compare import compare_page
from studio.web.datasets import (
    dataset_page,
    mapping_page,
    row_downloads,
    token_preview_page,
    token_stats_page,
)
from studio.web.endpoints import endpoint_page
from studio.web.experiments import (
    experiment_page,
    graded_experiment_page,
    import_page,
    new_experiment_page,
    quick_start_page,
)
from studio.web.feedback import feedback_page
from studio.web.graders import grader_page
from studio.web.hardware import hardware_page
from studio.web.help import help_page, style_page
from studio.web.http import errors
from studio.web.http.deps import MAX_GRADERS, SessionSlots
from studio.web.http.event_hub import EventHub, StreamLimiter
from studio.web.i18n.locale import LocaleMiddleware
from studio.web.middleware.auth_middleware import RECHECK_SECONDS, AuthMiddleware
from studio.web.middleware.request_guard import ProxyHeadersMiddleware, RequestGuard
from studio.web.middleware.request_metrics import RequestMetrics, RequestMetricsMiddleware
from studio.web.models import export_page, model_page
from studio.web.numbers import numbers_page
from studio.web.playground import playground_page
from studio.web.queue import queue_page
from studio.web.rendering import static_files
from studio.web.reports import report_page
from studio.web.runs import run_page, run_table_page, seen_runs
from studio.web.search import palette_page
from studio.web.settings import settings_page
from studio.web.studies import study_page
from studio.web.sweeps import sweep_page

PAGES = tuple(
    module.router
    for module in (
        run_table_page,
        seen_runs,
        palette_page,
        token_preview_page,
        import_page,
        new_experiment_page,
        quick_start_page,
        experiment_page,
        run_page,
        chat_page,
        answer_stream,
        token_scores,
        try_it,
        playground_page,
        grader_page,
        graded_experiment_page,
        endpoint_page,
        export_page,
        compare_page,
        report_page,
        dataset_page,
        token_stats_page,
        feedback_page,
        study_page,
        sweep_page,
        mapping_page,
        row_downloads,
        model_page,
        queue_page,
        hardware_page,
        settings_page,
        help_page,
        numbers_page,
        style_page,
        accounts_page,
    )
)
"""The routers of all pages, in matching order."""

API = (
    system.router,
    hardware.router,
    models.methods_router,
    datasets.router,
    tokens.preview_router,
    tokens.router,
    versions.router,
    models.router,
    recipes.router,
    experiments.router,
    plan.router,
    event_streams.router,
    runs.router,
    run_results.router,
    trackers.router,
    runs.table_router,
    run_results.samples_router,
    run_results.exports_router,
    hub_pushes.router,
    benchmarks.router,
    evaluations.router,
    judgements.router,
    predictions.router,
    rollouts.router,
    system.tasks_router,
    datasets.uploads_router,
    feedback.router,
    graders.router,
    endpoints.router,
    compare.router,
    compare.saved_router,
    experiments.studies_router,
    sweeps.router,
    runs.queue_router,
    remote_workers.router,
    system.notifications_router,
    system.metrics_router,
    accounts.tokens_router,
    accounts.router,
    accounts.secrets_router,
    *openai.ROUTERS,
)
"""The routers of the REST API, in matching order."""


_DESCRIPTION = "Fine-tune language models: experiments, runs and metrics."


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = openapi_extras.add_shared_parts(super().openapi())
        return self.openapi_schema


def create_app(engine: Engine, settings: Settings) -> FastAPI:
    request_metrics = RequestMetrics()
    for router in (*PAGES, *API):
        permissions.require_rows(router)
    route_table = RouteTable()
    request_guard = Middleware(
        RequestGuard,
        hosts=settings.allowed_hosts.lower().split(","),
        upload_limit=settings.upload_limit_bytes,
        image_limit=settings.image_bytes_per_question,
    )
    app = _App(
        title="Mantissa Studio",
        version=studio.__version__,
        description=_DESCRIPTION,
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(ProxyHeadersMiddleware, settings=settings),
            Middleware(RequestMetricsMiddleware, traffic=request_metrics),
            request_guard,
            # The language comes first, so that a rejected caller gets the reason in it.
            Middleware(LocaleMiddleware),
            Middleware(AuthMiddleware, ways=route_table, settings=settings),
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
    )
    app.state.engine = engine
    app.state.settings = settings
    app.state.routes = route_table
    app.state.hub = EventHub(engine)
    app.state.traffic = request_metrics
    app.state.seats = SessionSlots()
    app.state.grader_slots = Semaphore(MAX_GRADERS)
    app.state.tries = LoginThrottle()
    app.state.pending = PendingSignIns()
    app.state.viewers = StreamLimiter()
    app.state.hub_answers = HubAccessCache()
    app.state.run_files = InputIndex()
    app.state.look_again_seconds = RECHECK_SECONDS
    errors.install_handlers(app)
    # Do not use include_router(): it analyses each route again, which costs 0.2 s at the first
    # request, only to support prefixes and shared dependencies that are not used here.
    app.router.routes.extend(route for router in (*PAGES, *API) for route in router.routes)
    app.mount("/static", static_files.CachedStaticFiles(), name="static")
    return app


def freeze_gc_heap() -> None:
    """Exclude everything loaded so far from garbage collection.

    A collection over all of it takes 0.2 s, and could happen in the middle of a request.
    """
    gc.freeze()
    gc.enable()


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.hub.running():
        yield
