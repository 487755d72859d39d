"""Assemble the web application: routers, middleware and shared state."""

import gc
from asyncio import Semaphore
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy import Engine
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Route

import studio
from studio.services.accounts.oidc import PendingSignIns
from studio.services.remote.run_files import InputIndex
from studio.services.runs.hub_access import HubAccessCache
from studio.settings import Settings
from studio.web.auth.login_throttle import LoginThrottle
from studio.web.auth.route_table import RouteTable
from studio.web.http import errors
from studio.web.http.deps import MAX_GRADERS, SessionSlots
from studio.web.http.event_hub import EventHub, StreamLimiter
from studio.web.i18n.locale import LocaleMiddleware
from studio.web.middleware.auth_middleware import RECHECK_SECONDS, AuthMiddleware
from studio.web.middleware.request_guard import ProxyHeadersMiddleware, RequestGuard
from studio.web.middleware.request_metrics import RequestMetrics, RequestMetricsMiddleware
from studio.web.rendering import static_files
from studio.web.routers import API, PAGES, LazyRoutes

_DESCRIPTION = "Fine-tune language models: experiments, runs and metrics."
_DESCRIBING = Lock()


class _App(FastAPI):
    @property
    def routes(self) -> list[BaseRoute]:
        """All routes; this imports those that were not asked for yet."""
        return [
            route
            for mounted in self.router.routes
            for route in (mounted.load_all() if isinstance(mounted, LazyRoutes) else [mounted])
        ]

    def openapi(self) -> dict[str, Any]:
        """Return the description of the API; the first call takes a second."""
        from studio.web import openapi_extras  # noqa: PLC0415 -- heavy import

        with _DESCRIBING:
            if self.openapi_schema is None:
                self.openapi_schema = openapi_extras.add_shared_parts(super().openapi())
            return self.openapi_schema


def _openapi_document(request: Request) -> JSONResponse:
    """Answer in a thread, where FastAPI's own route would stop all other requests meanwhile."""
    return JSONResponse(request.app.openapi())


def create_app(engine: Engine, settings: Settings) -> FastAPI:
    request_metrics = RequestMetrics()
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
        openapi_url=None,
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
    app.router.routes.append(Route("/openapi.json", _openapi_document, include_in_schema=False))
    # Do not use include_router(): it analyses each route again, which costs 0.2 s at the first
    # request, only to support prefixes and shared dependencies that are not used here.
    app.router.routes.append(LazyRoutes(PAGES | API))
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
