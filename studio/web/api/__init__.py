"""The REST API, one module a noun."""

from studio.web.api import (
    compare,
    datasets,
    deliveries,
    experiments,
    exports,
    live,
    methods,
    models,
    plan,
    queue,
    runs,
    studies,
    system,
    watch,
)

ROUTERS = tuple(
    module.router
    for module in (
        system,
        methods,
        datasets,
        models,
        experiments,
        plan,
        live,
        runs,
        exports,
        compare,
        studies,
        queue,
        deliveries,
        watch,
    )
)
