"""The REST API, one module a noun."""

from studio.web.api import (
    chores,
    compare,
    datasets,
    deliveries,
    experiments,
    exports,
    imports,
    live,
    methods,
    models,
    plan,
    queue,
    runs,
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
        versions,
        models,
        experiments,
        plan,
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
