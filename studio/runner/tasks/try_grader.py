"""Try a grader on answers of a model: several answers a row, sampled as in training."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from studio.graders.grading import Grading
from studio.graders.items import GradedRow
from studio.protocols import grader_judges
from studio.protocols.grader_judges import EndpointJudges
from studio.protocols.grader_trials import (
    ANSWERS_FILE,
    GivenAnswer,
    TrialJob,
    TrialResult,
    grade_rows,
    list_answers,
)
from studio.protocols.tasks import TaskDir
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.runner.execution import ReportProgress
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.whole_answers import write_answers
from studio.runner.judges.grader_models import ask_local
from studio.settings import Settings
from studio.training.data import token_preview

_WRITING = 0.8
"""The share of the work that is writing answers, rather than grading them."""


def try_grader(folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Let a model answer rows, and grade its answers. A further attempt keeps those written."""
    job = TrialJob.model_validate(params)
    settings, cache = Settings(), ModelCache()
    answers = _write_answers(job, folder.files / ANSWERS_FILE, cache, report)
    endpoints = (
        grader_judges.from_settings(settings)
        if job.source.kind == "endpoints"
        else EndpointJudges([], allow_internal=False)
    )
    ask = grader_judges.ask_models(endpoints, ask_local(job.judges, cache))
    rows = []
    with (
        grader_judges.asking_ahead(job.grader, list_answers(job.rows, answers), ask) as ahead,
        Grading(job.grader, settings.python_graders, ask_model=ahead) as grading,
    ):
        for row in grade_rows(grading, job.rows, answers):
            rows.append(row)
            report("grading", _WRITING + (1 - _WRITING) * len(rows) / len(job.rows))
        seals = grading.seals
    return TrialResult(rows=rows, seals=seals).model_dump(mode="json")


def _write_answers(
    job: TrialJob, path: Path, cache: ModelCache, report: ReportProgress
) -> dict[int, list[GivenAnswer]]:
    """Return the answers to each row, by the row's number."""
    answers = _read_answers(path)
    left = [row for row in job.rows if row.number not in answers]
    if not left:
        return answers
    report("loading", None)
    with cache.model_for(job.model) as (model, tokenizer), path.open("a") as file:
        for row in left:
            report("answering", _WRITING * len(answers) / len(job.rows))
            answers[row.number] = _answer(job, row, model, tokenizer)
            texts = [answer.model_dump() for answer in answers[row.number]]
            file.write(json.dumps({"number": row.number, "answers": texts}) + "\n")
            file.flush()
    return answers


def _answer(
    job: TrialJob, row: GradedRow, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> list[GivenAnswer]:
    asked = TokenizerRequest(
        kind="prompt",
        model=job.model.model,
        row={"messages": list(row.messages)},
        chat_template=job.chat_template,
    )
    prompt = token_preview.tokenise_prompt(asked, tokenizer)
    request = job.model.model_copy(
        update={
            "ids": prompt.ids,
            "stops": prompt.stops,
            "most": job.max_new_tokens,
            "temperature": job.temperature,
        }
    )
    first = row.number * job.answers
    requests = [
        request.model_copy(update={"seed": seed}) for seed in range(first, first + job.answers)
    ]
    return [
        GivenAnswer(text=text, is_cut_off=end.reason == "length", tokens=end.tokens)
        for text, end in write_answers(requests, model, tokenizer)
    ]


def _read_answers(path: Path) -> dict[int, list[GivenAnswer]]:
    """Return the answers of an earlier attempt; a kill may have cut the last line."""
    if not path.exists():
        return {}
    whole = path.read_bytes().rpartition(b"\n")[0]
    path.write_bytes(whole + b"\n" * bool(whole))
    return dict(map(_to_answers, map(json.loads, whole.splitlines())))


def _to_answers(line: Mapping[str, Any]) -> tuple[int, list[GivenAnswer]]:
    return line["number"], [GivenAnswer.model_validate(one) for one in line["answers"]]
