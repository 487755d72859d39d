"""Pages for people, one module a noun."""

from studio.web.pages import (
    compare,
    datasets,
    experiments,
    exports,
    failures,
    home,
    queue,
    runs,
    settings,
    studies,
)

ROUTERS = tuple(
    module.router
    for module in (
        *(home, experiments, runs, exports, compare),
        *(studies, datasets, queue, settings, failures),
    )
)
