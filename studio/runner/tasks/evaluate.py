"""Evaluate a model: let it answer rows that it was not trained on."""

import random
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.evaluation import run_metrics
from studio.protocols.evaluation import RESULTS_FILE, EvaluationJob, RowResult
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.runner.inference.model_cache import ModelCache
from studio.training.data import chat_templates
from studio.training.data.rows import TrainingRow, is_rated_bad, read_rows, split_rows
from studio.training.evaluation.row_results import RowEvaluator
from studio.training.evaluation.training_overlap import mark_overlaps
from studio.training.models import heads


def evaluate(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Answer the rows of an evaluation. A further attempt continues after the last batch."""
    job = EvaluationJob.model_validate(params)
    report("loading", None)
    rows = choose_rows(job)
    path = folder.files / RESULTS_FILE
    results = _read_results(path)
    with ModelCache().model_for(job.model) as (model, tokenizer), path.open("a") as file:
        evaluator = _build_evaluator(job, rows, model, tokenizer)
        report("answering", len(results) / evaluator.count)
        for batch in evaluator.results(model, frozenset(results)):
            for result in batch:
                results[result.position] = result
                file.write(result.model_dump_json() + "\n")
            file.flush()
            report("answering", len(results) / evaluator.count)
    report("looking for the rows in the training data", None)
    marked = mark_overlaps(job, [results[place] for place in sorted(results)])
    return {
        "rows": [result.model_dump(mode="json") for result in marked],
        "metrics": run_metrics.measure([result.to_row() for result in marked]),
    }


def choose_rows(job: EvaluationJob) -> list[TrainingRow]:
    """Return the rows to ask: those held out by the run, or of the whole dataset."""
    rows = read_rows(job.train, with_bad=job.with_bad)
    if not job.is_whole and job.validation is not None:
        rows = read_rows(job.validation, "validation", with_bad=job.with_bad)
    elif not job.is_whole:
        _training, rows = split_rows(rows, job.validation_share, job.seed)
    good = [row for row in rows if not is_rated_bad(row)]
    chosen = random.Random(0).sample(range(len(good)), min(job.rows, len(good)))  # noqa: S311 -- no secret
    return [good[index] for index in sorted(chosen)]


def _build_evaluator(
    job: EvaluationJob,
    rows: list[TrainingRow],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> RowEvaluator:
    template = None
    if job.has_chat_template and any(row.text is None for row in rows):
        chat_templates.set_chat_template(tokenizer, job.chat_template)
        template = chat_templates.ChatTemplate(tokenizer)
    return RowEvaluator(
        rows, template, tokenizer, job, reads_first=heads.is_encoder_decoder(model.config)
    )


def _read_results(path: Path) -> dict[int, RowResult]:
    """Return the results of an earlier attempt by position; a kill may have cut the last line."""
    if not path.exists():
        return {}
    whole = path.read_bytes().rpartition(b"\n")[0]
    path.write_bytes(whole + b"\n" * bool(whole))
    results = [RowResult.model_validate_json(line) for line in whole.splitlines()]
    return {result.position: result for result in results}
