"""The REST API, one module a noun."""

from studio.web.api import (
    chores,
    compare,
    datasets,
    deliveries,
    estimate,
    experiments,
    exports,
    findings,
    imports,
    live,
    methods,
    models,
    plan,
    preview,
    queue,
    runs,
    stats,
    studies,
    system,
    uploads,
    versions,
    watch,
)

ROUTERS = tuple(
    module.router
    for module in (
        system,
        methods,
        datasets,
        preview,
        stats,
        versions,
        findings,
        models,
        experiments,
        plan,
        estimate,
        live,
        runs,
        exports,
        chores,
        imports,
        uploads,
        compare,
        studies,
        queue,
        deliveries,
        watch,
    )
)
