"""Pages for people, one module a noun."""

from studio.web.pages import (
    chores,
    compare,
    datasets,
    experiments,
    exports,
    failures,
    home,
    imports,
    mappings,
    queue,
    runs,
    settings,
    studies,
)

ROUTERS = tuple(
    module.router
    for module in (
        *(home, experiments, runs, exports, compare),
        *(studies, imports, datasets, mappings, queue, settings, failures, chores),
    )
)
