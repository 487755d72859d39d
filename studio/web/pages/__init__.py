"""Pages for people, one module a noun."""

from studio.web.pages import (
    compare,
    datasets,
    experiments,
    exports,
    home,
    queue,
    runs,
    settings,
    studies,
)

ROUTERS = tuple(
    module.router
    for module in (home, experiments, runs, exports, compare, studies, datasets, queue, settings)
)
