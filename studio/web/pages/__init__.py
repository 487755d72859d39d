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
    models,
    queue,
    runs,
    settings,
    sight,
    stats,
    studies,
)

ROUTERS = tuple(
    module.router
    for module in (
        *(home, sight, experiments, runs, exports, compare, imports, datasets, stats),
        *(studies, mappings, models, queue, settings, failures, chores),
    )
)
