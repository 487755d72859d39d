"""The REST API, one module a noun."""

from studio.web.api import (
    compare,
    datasets,
    experiments,
    live,
    methods,
    models,
    queue,
    runs,
    system,
)

ROUTERS = tuple(
    module.router
    for module in (
        system,
        methods,
        datasets,
        models,
        experiments,
        live,
        runs,
        compare,
        queue,
    )
)
