"""Statistics for tests of what shows them: counted here by what the chore does, in no time."""

from pathlib import Path

from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tasks import Task
from studio.intake.quality.length_stats import (
    TOKEN_STATS_ADAPTER,
    PartStats,
    TokenCountJob,
    TokenStats,
)
from studio.runner.tokenizer import cache
from studio.services.datasets import datasets, token_stats, versions
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.training.data.token_stats import count_tokens, make_tokeniser


def count_rows(
    db: Session,
    settings: Settings,
    model: str,
    chat_template: str = "model",
    *,
    dataset: int = 1,
    with_bad: bool = False,
) -> Task:
    """Count the rows of the first data set, or of another, for a model."""
    version = versions.current(db, datasets.get(db, dataset))
    assert version is not None
    chore = token_stats.enqueue(
        db,
        settings,
        token_stats.build_request(db, version, model, chat_template, with_bad=with_bad),
    )
    asked = TokenCountJob.model_validate(chore.params)
    write = make_tokeniser(cache.load_tokenizer(asked.model), asked.chat_template)

    def part(path: Path, name: str) -> PartStats:
        return count_tokens(path, name, write, lambda _rows, _end: None, with_bad=with_bad)

    found = TokenStats(
        train=part(asked.train, "training"),
        validation=part(asked.validation, "validation") if asked.validation else None,
    )
    tasks.start_work(chore)
    chore.result = TOKEN_STATS_ADAPTER.dump_python(found, mode="json")
    tasks.close_work(chore, TaskStatus.SUCCEEDED)
    return chore
