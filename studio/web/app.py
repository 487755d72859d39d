"""Put the web process together."""

import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy import Engine
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

import studio
from studio.settings import Settings
from studio.web import errors, files
from studio.web.api import ROUTERS as API
from studio.web.deps import Seats
from studio.web.pages import ROUTERS as PAGES
from studio.web.security import Gate
from studio.web.stream import Hub
from studio.web.traffic import Counter, Traffic

_ABOUT = "Fine-tune language models: experiments, runs and their numbers."


def create_app(engine: Engine, settings: Settings) -> FastAPI:
    traffic = Traffic()
    gate = Middleware(
        Gate,
        hosts=settings.allowed_hosts.lower().split(","),
        upload_limit=settings.upload_limit_bytes,
    )
    app = FastAPI(
        title="Mantissa Studio",
        version=studio.__version__,
        description=_ABOUT,
        lifespan=_life,
        docs_url=None,
        redoc_url=None,
        middleware=[
            Middleware(Counter, traffic=traffic),
            gate,
            Middleware(GZipMiddleware, minimum_size=1000),
        ],
    )
    app.state.engine = engine
    app.state.settings = settings
    app.state.hub = Hub(engine)
    app.state.traffic = traffic
    app.state.seats = Seats()
    errors.install(app)
    for router in (*PAGES, *API):
        app.include_router(router)
    app.mount("/static", files.Kept(), name="static")
    return app


def settle() -> None:
    """Spare the garbage collector what is loaded by now, and stays.

    A look at all of it takes a tenth of a second, in the middle of somebody's request.
    """
    gc.collect()
    gc.freeze()


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    async with app.state.hub.running():
        yield
