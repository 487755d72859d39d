"""Pages for people, one module a noun."""

from studio.web.pages import (
    compare,
    datasets,
    experiments,
    home,
    queue,
    runs,
    settings,
    studies,
)

ROUTERS = tuple(
    module.router
    for module in (home, experiments, runs, compare, studies, datasets, queue, settings)
)
