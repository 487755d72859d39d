"""Put the web process together."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

import studio
from studio.services.accounts.oidc import PendingSignIns
from studio.services.runs.base_model_check import HubAccessCache
from studio.settings import Settings
from studio.web import openapi_extras
from studio.web.api.routers import ROUTERS as API
from studio.web.auth.login_throttle import Tries
from studio.web.auth.route_table import Ways
from studio.web.http import errors
from studio.web.http.deps import Seats
from studio.web.http.event_hub import Hub
from studio.web.http.stream_limits import Viewers
from studio.web.i18n.locale import Tongue
from studio.web.middleware.auth_middleware import LOOK_AGAIN_SECONDS, Door
from studio.web.middleware.proxy_headers import Behind
from studio.web.middleware.request_guard import Gate
from studio.web.middleware.request_metrics import Counter, Traffic
from studio.web.page_routers import ROUTERS as PAGES
from studio.web.rendering import static_app

_ABOUT = "Fine-tune language models: experiments, runs and their numbers."


class _App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = openapi_extras.completed(super().openapi())
        return self.openapi_schema


def create_app(engine: Engine, settings: Settings) -> FastAPI:
    traffic = Traffic()
    ways = Ways((*PAGES, *API))
    gate = Middleware(
        Gate,
        hosts=settings.allowed_hosts.lower().split(","),
        upload_limit=settings.upload_limit_bytes,
    )
    app = _App(
        title="Mantissa Studio",
        version=studio.__version__,
        description=_ABOUT,
        lifespan=_life,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(Behind, settings=settings),
            Middleware(Counter, traffic=traffic),
            gate,
            # First what speaks, so that whoever is turned away can read why.
            Middleware(Tongue),
            Middleware(Door, ways=ways, settings=settings),
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
    )
    app.state.engine = engine
    app.state.settings = settings
    app.state.hub = Hub(engine)
    app.state.traffic = traffic
    app.state.seats = Seats()
    app.state.tries = Tries()
    app.state.pending = PendingSignIns()
    app.state.viewers = Viewers()
    app.state.hub_answers = HubAccessCache()
    app.state.look_again_seconds = LOOK_AGAIN_SECONDS
    errors.install(app)
    # To include a router is to analyse each of its routes again, a fifth of a second at the first
    # request; what that is for, prefixes and dependencies of the whole, is not used here.
    app.router.routes.extend(route for router in (*PAGES, *API) for route in router.routes)
    app.mount("/static", static_app.Kept(), name="static")
    return app


def settle() -> None:
    """Spare the garbage collector what is loaded by now, and stays.

    A look at all of it takes a fifth of a second: now, or in the middle of somebody's request.
    """
    gc.freeze()
    gc.enable()


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.hub.running():
        yield
