"""Pages for people, one module a noun."""

from studio.web.pages import (
    breakages,
    chores,
    compare,
    comparisons,
    datasets,
    experiments,
    exports,
    failures,
    home,
    imports,
    manual,
    mappings,
    models,
    new,
    palette,
    queue,
    ratings,
    runs,
    settings,
    sight,
    stats,
    studies,
    style,
    sweeps,
    tables,
)

ROUTERS = tuple(
    module.router
    for module in (
        *(home, tables, sight, new, experiments, breakages, runs, exports, compare, ratings),
        *(comparisons, imports, datasets, stats),
        *(studies, sweeps, mappings, models, queue, settings, failures, chores),
        *(manual, palette, style),
    )
)
