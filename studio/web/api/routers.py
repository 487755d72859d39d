"""The routers of the REST API, in matching order."""

from studio.web.api import openai
from studio.web.api.accounts import accounts, secrets, tokens
from studio.web.api.compare import compare, saved_comparisons
from studio.web.api.datasets import datasets, token_preview, token_stats, uploads, versions
from studio.web.api.experiments import experiments, studies, sweeps
from studio.web.api.models import methods, models
from studio.web.api.runs import (
    event_streams,
    exports,
    plan,
    queue,
    run_results,
    run_table,
    runs,
    samples,
)
from studio.web.api.system import notifications, prometheus, system, tasks

ROUTERS = (
    tuple(
        module.router
        for module in (
            system,
            methods,
            datasets,
            token_preview,
            token_stats,
            versions,
            models,
            experiments,
            plan,
            event_streams,
            runs,
            run_results,
            run_table,
            samples,
            exports,
            tasks,
            uploads,
            compare,
            saved_comparisons,
            studies,
            sweeps,
            queue,
            notifications,
            prometheus,
            tokens,
            accounts,
            secrets,
        )
    )
    + openai.ROUTERS
)
