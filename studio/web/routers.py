"""The routers of all pages and of the REST API."""

from studio.web.accounts import accounts_page, login_page
from studio.web.api import accounts, compare, openai
from studio.web.api.datasets import datasets, tokens, versions
from studio.web.api.experiments import experiments, sweeps
from studio.web.api.models import models
from studio.web.api.runs import event_streams, exports, plan, run_results, runs
from studio.web.api.system import system
from studio.web.compare import compare_page
from studio.web.datasets import dataset_page, mapping_page, token_preview_page, token_stats_page
from studio.web.experiments import experiment_page, new_experiment_page
from studio.web.help import help_page, style_page
from studio.web.models import export_page, model_page
from studio.web.queue import queue_page
from studio.web.runs import run_page, run_table_page
from studio.web.search import palette_page
from studio.web.settings import settings_page
from studio.web.studies import study_page
from studio.web.sweeps import sweep_page

PAGES = tuple(
    module.router
    for module in (
        run_table_page,
        palette_page,
        token_preview_page,
        new_experiment_page,
        experiment_page,
        run_page,
        export_page,
        compare_page,
        dataset_page,
        token_stats_page,
        study_page,
        sweep_page,
        mapping_page,
        model_page,
        queue_page,
        settings_page,
        help_page,
        style_page,
        login_page,
        accounts_page,
    )
)
"""The routers of all pages, in matching order."""

API = (
    system.router,
    models.methods_router,
    datasets.router,
    tokens.preview_router,
    tokens.router,
    versions.router,
    models.router,
    experiments.router,
    plan.router,
    event_streams.router,
    runs.router,
    run_results.router,
    runs.table_router,
    run_results.samples_router,
    exports.router,
    system.tasks_router,
    datasets.uploads_router,
    compare.router,
    compare.saved_router,
    experiments.studies_router,
    sweeps.router,
    runs.queue_router,
    system.notifications_router,
    system.metrics_router,
    accounts.tokens_router,
    accounts.router,
    accounts.secrets_router,
    *openai.ROUTERS,
)
"""The routers of the REST API, in matching order."""
