"""Pages for people, one module a noun."""

from studio.web.pages import compare, datasets, experiments, home, queue, runs, settings

ROUTERS = tuple(
    module.router for module in (home, experiments, runs, compare, datasets, queue, settings)
)
