"""Count the tokens of a dataset as a model will see them."""

import signal
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from studio.errors import InvalidError, TrainingError
from studio.intake.quality.length_stats import TOKEN_STATS_ADAPTER, TokenCountJob, TokenStats
from studio.protocols.tasks import TaskDir
from studio.runner import sandbox
from studio.runner.execution import ReportProgress
from studio.runner.tokenizer.main import BLOCKED_PACKAGES

_CHUNK_SECONDS = 120
"""How long a few hundred rows may take: a chat template is an untrusted program and may not
terminate."""
_MEMORY_BYTES = 4 * 2**30


def count(_folder: TaskDir, params: dict[str, Any], report: ReportProgress) -> dict[str, Any]:
    """Count all rows. Return `studio.intake.quality.length_stats.TokenStats` as JSON.

    Raises:
        InvalidError: the tokenizer or its chat template cannot be used, or does not terminate.

    """
    for name in BLOCKED_PACKAGES:
        sys.modules.setdefault(name, None)  # type: ignore[arg-type] # marks a module as absent
    count_job = TokenCountJob.model_validate(params)
    report("loading the tokenizer", None)
    signal.signal(signal.SIGALRM, _raise_timeout)
    sandbox.limit_memory(_MEMORY_BYTES)
    try:
        return _count_files(count_job, report)
    except TrainingError as error:
        # Explaining a `TrainingError` would import torch, which is blocked here.
        raise InvalidError(error.message, hint=error.hint) from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _count_files(count_job: TokenCountJob, report: ReportProgress) -> dict[str, Any]:
    from studio.runner.tokenizer import cache  # noqa: PLC0415 -- heavy import
    from studio.training.data.token_stats import count_tokens, make_tokeniser  # noqa: PLC0415 -- heavy import

    write = make_tokeniser(
        cache.load_tokenizer(count_job.model, count_job.code), count_job.chat_template
    )
    files = [count_job.train, *([count_job.validation] if count_job.validation else [])]
    sizes = [max(1, path.stat().st_size) for path in files]

    def progress_after(before: int) -> Callable[[int, int], None]:
        def report_rows(rows: int, end: int) -> None:
            signal.setitimer(signal.ITIMER_REAL, _CHUNK_SECONDS)
            report(f"counting the tokens of {rows:,} rows", (before + end) / sum(sizes))

        report_rows(0, 0)
        return report_rows

    with_bad = count_job.with_bad
    train = count_tokens(count_job.train, "training", write, progress_after(0), with_bad=with_bad)
    validation = None
    if count_job.validation:
        validation = count_tokens(
            count_job.validation,
            "validation",
            write,
            progress_after(sizes[0]),
            with_bad=with_bad,
        )
    stats: dict[str, Any] = TOKEN_STATS_ADAPTER.dump_python(
        TokenStats(train=train, validation=validation), mode="json"
    )
    return stats


def _raise_timeout(_number: int, _frame: object) -> NoReturn:
    raise InvalidError(
        f"A few hundred rows took more than {_CHUNK_SECONDS} seconds: the model's chat "
        "template does not terminate, or the rows are very long.",
        hint="Choose another chat template, or another model.",
    )
