"""All routers, each imported when one of its addresses is first asked for.

To import all of them takes longer than anything else that the web process does at its start.
"""

import gc
from collections import defaultdict
from collections.abc import Mapping
from importlib import import_module
from threading import Lock

from fastapi import APIRouter
from starlette.concurrency import run_in_threadpool
from starlette.routing import BaseRoute, Match, Router
from starlette.types import Receive, Scope, Send

from studio.web.auth import permissions
from studio.web.auth.route_table import API_PREFIX, first_segment

PAGES = {
    "runs.run_table_page": "/ /runs /views",
    "runs.seen_runs": "/runs",
    "search.palette_page": "/palette /completions",
    "datasets.token_preview_page": "/new /datasets",
    "experiments.import_page": "/new",
    "experiments.new_experiment_page": "/new",
    "experiments.quick_start_page": "/quick-start",
    "experiments.experiment_page": "/experiments",
    "runs.run_page": "/runs /samples",
    "chat.chat_page": "/runs",
    "chat.answer_stream": "/runs",
    "chat.token_scores": "/runs",
    "chat.try_it": "/runs",
    "playground.playground_page": "/playground",
    "graders.grader_page": "/graders",
    "experiments.graded_experiment_page": "/graders",
    "endpoints.endpoint_page": "/endpoints",
    "models.export_page": "/runs",
    "compare.compare_page": "/compare /comparisons",
    "reports.report_page": "/runs /compare",
    "datasets.dataset_page": "/datasets",
    "datasets.token_stats_page": "/datasets",
    "feedback.feedback_page": "/feedback",
    "studies.study_page": "/reports",
    "sweeps.sweep_page": "/sweeps",
    "datasets.mapping_page": "/datasets",
    "datasets.row_downloads": "/datasets",
    "models.model_page": "/models",
    "queue.queue_page": "/queue /worker /chores",
    "hardware.hardware_page": "/hardware",
    "settings.settings_page": "/settings /language",
    "help.help_page": "/help /failures /docs",
    "numbers.numbers_page": "/numbers",
    "help.style_page": "/style",
    "accounts.accounts_page": "/login /logout /settings",
}
"""The routers of all pages in matching order, with the starts of their paths.

A router is named by its module in `studio.web`, and after a colon by its name if that is another
than `router`.
"""

API = {
    "api.system.system": "/api/v1/health",
    "api.system.hardware": "/api/v1/hardware /api/v1/runs",
    "api.models.models:methods_router": "/api/v1/methods /api/v1/precisions",
    "api.datasets.datasets": "/api/v1/datasets",
    "api.datasets.tokens:preview_router": "/api/v1/datasets",
    "api.datasets.tokens": "/api/v1/datasets",
    "api.datasets.versions": "/api/v1/datasets",
    "api.models.models": "/api/v1/models",
    "api.experiments.recipes": "/api/v1/recipes /api/v1/experiments",
    "api.experiments.experiments": "/api/v1/experiments",
    "api.runs.plan": "/api/v1/plan /api/v1/estimate",
    "api.runs.event_streams": "/api/v1/runs /api/v1/stream",
    "api.runs.runs": "/api/v1/runs",
    "api.runs.run_results": "/api/v1/runs",
    "api.runs.trackers": "/api/v1/runs",
    "api.runs.runs:table_router": "/api/v1/fields /api/v1/bulk /api/v1/views",
    "api.runs.run_results:samples_router": "/api/v1/runs",
    "api.runs.run_results:exports_router": "/api/v1/runs",
    "api.runs.hub_pushes": "/api/v1/runs",
    "api.runs.benchmarks": "/api/v1/runs",
    "api.runs.evaluations": "/api/v1/runs",
    "api.runs.judgements": "/api/v1/runs",
    "api.runs.predictions": "/api/v1/runs",
    "api.runs.rollouts": "/api/v1/runs",
    "api.system.system:tasks_router": "/api/v1/chores",
    "api.datasets.datasets:uploads_router": "/api/v1/uploads",
    "api.feedback": "/api/v1/feedback",
    "api.graders": "/api/v1/graders",
    "api.endpoints": "/api/v1/endpoints",
    "api.compare": "/api/v1/compare",
    "api.compare:saved_router": "/api/v1/comparisons",
    "api.experiments.experiments:studies_router": "/api/v1/experiments /api/v1/studies",
    "api.experiments.sweeps": "/api/v1/sweeps",
    "api.runs.runs:queue_router": "/api/v1/queue",
    "api.system.remote_workers": "/api/v1/workers",
    "api.system.system:notifications_router": "/api/v1/notifications /api/v1/deliveries",
    "api.system.system:metrics_router": "/metrics",
    "api.accounts:tokens_router": "/api/v1/tokens",
    "api.accounts": "/api/v1/accounts",
    "api.accounts:secrets_router": "/api/v1/secrets",
    "api.openai.files": "/v1",
    "api.openai.jobs": "/v1",
    "api.openai.graders": "/v1",
    "api.openai.models": "/v1",
    "api.openai.chat": "/v1",
    "api.openai.embeddings": "/v1",
    "api.openai.rerank": "/v1",
}
"""The routers of the REST API, in the same form."""


def load_router(name: str) -> APIRouter:
    """Import a router.

    Raises:
        LookupError: One of its routes has no row in `studio/web/auth/permissions.py`.

    """
    module, _, attribute = name.partition(":")
    router: APIRouter = getattr(import_module(f"studio.web.{module}"), attribute or "router")
    permissions.require_rows(router)
    return router


def address_of(path: str) -> str:
    """Return the start of a path in the tables: `/runs` for `/runs.csv` and `/runs/3`."""
    prefix = f"{API_PREFIX}/" if path.startswith(f"{API_PREFIX}/") else "/"
    return prefix + first_segment(path)


class LazyRoutes(BaseRoute):
    """All routes; those below one address are imported for the first request to it."""

    def __init__(self, addresses_by_router: Mapping[str, str]) -> None:
        self._names = tuple(addresses_by_router)
        self._names_by_address: dict[str, list[str]] = defaultdict(list)
        for name, addresses in addresses_by_router.items():
            for address in addresses.split():
                self._names_by_address[address].append(name)
        self._routers: dict[str, Router] = {}
        self._loading = Lock()

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_known = address_of(scope["path"]) in self._names_by_address
        return (Match.FULL if is_known else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        address = address_of(scope["path"])
        router = self._routers.get(address)
        if router is None:
            router = await run_in_threadpool(self._load, address)
        await router(scope, receive, send)

    def load_all(self) -> list[BaseRoute]:
        """Return all routes, in matching order."""
        with self._loading:
            return [route for name in self._names for route in load_router(name).routes]

    def _load(self, address: str) -> Router:
        # One at a time: of two imports that need each other's modules, one would get half of them.
        with self._loading:
            names = self._names_by_address[address]
            routes = [route for name in names for route in load_router(name).routes]
            router = self._routers[address] = Router(routes)
            if gc.get_freeze_count():  # what was imported before is frozen: see `freeze_gc_heap`
                gc.freeze()
        return router
