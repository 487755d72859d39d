"""Evaluate a model: let it answer rows that it was not trained on."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.errors import InvalidError
from studio.evaluation import run_metrics
from studio.protocols.evaluation import RESULTS_FILE, EvaluationJob, RowResult
from studio.protocols.tasks import TaskDir
from studio.runner.execution import ReportProgress
from studio.runner.inference.model_cache import ModelCache
from studio.runner.tasks.evaluation.rankings import measure_rejected
from studio.runner.tasks.evaluation.row_reader import RowReader
from studio.runner.tasks.evaluation.rules import RuleReader
from studio.training.data import chat_templates, image_messages
from studio.training.data.rows import TrainingRow, is_rated_bad, read_rows, split_rows
from studio.training.evaluation.image_files import ImageFiles
from studio.training.evaluation.row_results import RowEvaluator
from studio.training.evaluation.training_overlap import mark_overlaps
from studio.training.models import heads


def evaluate(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Answer the rows of an evaluation. A further attempt continues after the last batch.

    Raises:
        InvalidError: no row can be asked.

    """
    job = EvaluationJob.model_validate(params)
    report("loading", None)
    rows = choose_rows(job)
    path = folder.files / RESULTS_FILE
    results = _read_results(path)
    with _answering(job, rows) as (count, answer), path.open("a") as file:
        if not count:
            raise InvalidError(
                "None of these rows can be asked.", hint="Choose rows with answers to compare with."
            )
        report("answering", len(results) / count)
        for batch in answer(frozenset(results)):
            for result in batch:
                results[result.position] = result
                file.write(result.model_dump_json() + "\n")
            file.flush()
            report("answering", len(results) / count)
    answered = [results[place] for place in sorted(results)]
    if job.model is not None:
        report("looking for the rows in the training data", None)
        answered = mark_overlaps(job, answered)
    return {
        "rows": [result.model_dump(mode="json") for result in answered],
        "metrics": run_metrics.measure([result.to_row() for result in answered]),
    }


Answering = Callable[[frozenset[int]], Iterator[list[RowResult]]]
"""Yields the results of rows whose positions are not among these, batch by batch."""


@contextmanager
def _answering(job: EvaluationJob, rows: list[TrainingRow]) -> Iterator[tuple[int, Answering]]:
    """Yield how many rows get an answer, and what answers them.

    That is a rule, a model that reads the rows, or one that writes.
    """
    if job.model is None:
        rule = RuleReader(rows, job, _read_training_rows(job))
        yield rule.count, rule.results
        return
    cache = ModelCache()
    with cache.model_for(job.model) as (model, tokenizer):
        images = None
        if heads.reads_images(model.config):
            folder = image_messages.folder_of(job.train)
            images = ImageFiles(folder, cache.reader_for(job.model))
        template = _load_template(job, rows, model, tokenizer)
        if job.answers != "text":
            reader = RowReader(rows, template, tokenizer, job, model)
            yield reader.count, reader.results
            return
        reads_first = heads.is_encoder_decoder(model.config)
        writer = RowEvaluator(
            rows, template, tokenizer, job, reads_first=reads_first, images=images
        )
        rejected = measure_rejected(rows, template, tokenizer, job.max_length, model)
        yield writer.count, partial(_write, writer, model, rejected)


def _write(
    writer: RowEvaluator,
    model: PreTrainedModel,
    rejected: Mapping[int, float],
    skip: frozenset[int],
) -> Iterator[list[RowResult]]:
    """Yield what a model writes, with the losses of worse answers by the number of their row."""
    for batch in writer.results(model, skip):
        yield [
            result.model_copy(update={"rejected_nll": rejected.get(result.number)})
            for result in batch
        ]


def _read_training_rows(job: EvaluationJob) -> list[TrainingRow]:
    """Return the rows that a run was trained on; none if they are gone."""
    if job.trained_on is None or not job.trained_on.is_file():
        return []
    rows = read_rows(job.trained_on, with_bad=job.with_bad)
    if job.has_own_validation:
        return rows
    return split_rows(rows, job.validation_share, job.seed)[0]


def choose_rows(job: EvaluationJob) -> list[TrainingRow]:
    """Return the rows to ask: those held out by the run, or of the whole dataset."""
    rows = read_rows(job.train, with_bad=job.with_bad)
    if not job.is_whole and job.validation is not None:
        rows = read_rows(job.validation, "validation", with_bad=job.with_bad)
    elif not job.is_whole:
        _training, rows = split_rows(rows, job.validation_share, job.seed)
    return draw_rows([row for row in rows if not is_rated_bad(row)], job.rows)


def draw_rows(rows: Sequence[TrainingRow], count: int) -> list[TrainingRow]:
    """Return so many rows in their order, chosen evenly at random, always the same."""
    chosen = random.Random(0).sample(range(len(rows)), min(count, len(rows)))  # noqa: S311 -- no secret
    return [rows[index] for index in sorted(chosen)]


def _load_template(
    job: EvaluationJob,
    rows: Sequence[TrainingRow],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> chat_templates.ChatTemplate | None:
    """Return the chat template; None if there is only text, or for an encoder."""
    has_turns = job.has_chat_template and any(row.text is None for row in rows)
    if not has_turns or heads.encoder_of(model.config) is not None:
        return None
    chat_templates.set_chat_template(tokenizer, job.chat_template)
    return chat_templates.load(tokenizer)


def _read_results(path: Path) -> dict[int, RowResult]:
    """Return the results of an earlier attempt by position; a kill may have cut the last line."""
    if not path.exists():
        return {}
    whole = path.read_bytes().rpartition(b"\n")[0]
    path.write_bytes(whole + b"\n" * bool(whole))
    results = [RowResult.model_validate_json(line) for line in whole.splitlines()]
    return {result.position: result for result in results}
