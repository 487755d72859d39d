"""The routers of all pages, in matching order."""

from studio.web.accounts import access_page, login_page, people_page
from studio.web.compare import compare_page
from studio.web.datasets import (
    dataset_page,
    import_page,
    mapping_page,
    token_preview_page,
    token_stats_page,
)
from studio.web.experiments import experiment_page, new_experiment_page
from studio.web.help import help_page, style_page
from studio.web.models import export_page, model_page
from studio.web.queue import queue_page
from studio.web.runs import run_list_page, run_page, run_table_page
from studio.web.search import palette_page
from studio.web.settings import settings_page
from studio.web.studies import study_page
from studio.web.sweeps import sweep_page

ROUTERS = tuple(
    module.router
    for module in (
        run_list_page,
        run_table_page,
        palette_page,
        token_preview_page,
        new_experiment_page,
        experiment_page,
        run_page,
        export_page,
        compare_page,
        import_page,
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
        access_page,
        people_page,
    )
)
