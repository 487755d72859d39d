"""The task of a benchmark: lay out model and rows for lm-eval, let it run, read what it found."""

import gc
import shutil
from pathlib import Path
from typing import Any

import torch

from studio.evaluation.benchmarks import ROW_METRICS, SUITES
from studio.protocols.benchmarks import BenchmarkJob, BenchmarkResult, SuiteSource
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.runner.tasks.benchmarks import harness, harness_model, harness_results, row_tasks
from studio.runner.tasks.benchmarks.harness_model import HarnessModel
from studio.settings import Settings

BATCH_SIZE = 8


def benchmark(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Measure a model with lm-eval. A further attempt starts from the beginning."""
    job = BenchmarkJob.model_validate(params)
    harness.require_installed()
    work = folder.files / "lm-eval"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        return measure(job, work, report).model_dump(mode="json")
    finally:
        # It may hold all weights of the model.
        shutil.rmtree(work, ignore_errors=True)


def measure(job: BenchmarkJob, work: Path, report: ReportProgress) -> BenchmarkResult:
    """Measure a model; everything that lm-eval reads and writes is in the folder `work`."""
    report("loading", None)
    model = harness_model.lay_out(job, work)
    gc.collect()  # lm-eval loads the model, too.
    torch.cuda.empty_cache()
    output = work / harness.OUTPUT
    if isinstance(job.source, SuiteSource):
        suite = SUITES[job.source.suite]
        config = suite_config(job.source, model)
        harness.run(work, config, harness.environment(work, Settings()), report)
        return harness_results.read(output, suite.name, suite.metrics, model)
    kind = row_tasks.write(job.source, model.template, work / "task")
    config = rows_config(model, work / "task")
    harness.run(work, config, harness.environment(work, None), report)
    return harness_results.read(output, row_tasks.TASK, [ROW_METRICS[kind]], model)


def suite_config(source: SuiteSource, model: HarnessModel) -> dict[str, Any]:
    """Return lm-eval's configuration for a public suite, whose prompts are its own."""
    suite = SUITES[source.suite]
    return _model_config(model) | {
        "tasks": [suite.name],
        "limit": suite.rows_per_part(source.rows),
        "apply_chat_template": model.template is not None,
        "gen_kwargs": dict(row_tasks.GREEDY),
    }


def rows_config(model: HarnessModel, folder: Path) -> dict[str, Any]:
    """Return lm-eval's configuration for a task in a folder, whose prompts are complete."""
    config = _model_config(model) | {"tasks": [row_tasks.TASK], "include_path": str(folder)}
    config["model_args"]["add_bos_token"] = False
    return config


def _model_config(model: HarnessModel) -> dict[str, Any]:
    return {
        "model": "hf",
        "model_args": dict(model.arguments),
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "batch_size": BATCH_SIZE,
    }
