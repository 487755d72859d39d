"""A recipe's example lengths from token counts, before any run has read the data."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from sqlmodel import Session

from studio.db.tables import DatasetVersion
from studio.errors import InvalidError
from studio.intake.quality.length_stats import TokenStats
from studio.methods import AnyRecipe
from studio.services.datasets import token_stats, versions
from studio.services.datasets.token_stats import StatsRequest
from studio.services.estimates.reference_runs import TokenLengths

CountSuggestion = Literal["", "now", "offer"]

MAX_AUTOMATIC_ROWS = 50_000
"""Rows up to which tokens are counted automatically: seconds of one CPU core, in a separate
process."""


def make_finder(db: Session) -> Callable[[AnyRecipe], TokenLengths | None]:
    """Return a function that finds counted lengths and reads each count only once."""
    counts: dict[tuple[str, str, str], TokenStats | None] = {}

    def find(recipe: AnyRecipe) -> TokenLengths | None:
        if recipe.data.packing:
            return None  # How many rows share an example is known only once they are packed.
        key = (recipe.base_model, recipe.dataset, recipe.data.chat_template)
        if key not in counts:
            counts[key] = token_stats.find_for_recipe(db, recipe)
        stats = counts[key]
        return _to_lengths(stats, recipe) if stats else None

    return find


def build_stats_request(db: Session, recipe: AnyRecipe) -> StatsRequest:
    """Return the request that counts a recipe's tokens.

    Raises:
        InvalidError: the model or dataset does not exist.

    """
    version = versions.require(db, recipe.dataset)
    return token_stats.build_request(db, version, recipe.base_model, recipe.data.chat_template)


def suggest_count(db: Session, recipe: AnyRecipe) -> CountSuggestion:
    """Return whether to count a recipe's tokens now, to offer it, or neither."""
    if recipe.data.packing:
        return ""  # A count would not show how many rows share an example.
    try:
        request = build_stats_request(db, recipe)
        task = token_stats.latest_task(db, request)
    except (InvalidError, OSError):
        return ""  # The field with the error reports it.
    if not Path(request.location).is_absolute():
        return ""  # Its tokenizer has not been downloaded yet.
    if task is None:
        return "now" if _rows(request.version) <= MAX_AUTOMATIC_ROWS else "offer"
    return "offer" if task.status.is_final else "now"


def _rows(version: DatasetVersion) -> int:
    return version.train_rows + version.validation_rows


def _to_lengths(stats: TokenStats, recipe: AnyRecipe) -> TokenLengths | None:
    split, max_length = stats.train, recipe.data.max_length
    if not split.rows or not split.longest:
        return None
    longest = min(split.longest[0].tokens, max_length)
    held_out = 0 if stats.validation else max(1, round(split.rows * recipe.data.validation_share))
    return TokenLengths(
        longest=longest,
        answer=min(split.most_learnt or longest, longest),
        rows=max(1, split.rows - held_out),
        examples=max(1, split.rows - held_out),
        row_tokens=(split.tokens - split.lengths.sum_above(max_length)) / split.rows,
    )
