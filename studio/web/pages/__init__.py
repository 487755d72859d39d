"""Pages for people, one module a noun."""

from studio.web.pages import (
    access,
    breakages,
    chores,
    compare,
    comparisons,
    completions,
    datasets,
    docs,
    experiments,
    exports,
    failures,
    home,
    imports,
    languages,
    login,
    manual,
    mappings,
    models,
    new,
    oidc,
    palette,
    people,
    queue,
    ratings,
    runs,
    secrets,
    settings,
    sight,
    stats,
    studies,
    style,
    sweeps,
    tables,
    worker,
)

ROUTERS = tuple(
    module.router
    for module in (
        *(home, tables, completions, sight, new, experiments, breakages, runs, exports),
        *(compare, ratings, comparisons, imports, datasets, stats),
        *(studies, sweeps, mappings, models, queue, settings, failures, chores),
        *(languages, manual, docs, palette, style, worker),
        *(login, oidc, access, people, secrets),
    )
)
