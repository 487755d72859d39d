"""Match columns to pairs of texts: by names for what matches a query, or by a score of two texts.

Two texts with a score can also be read as one text with a label or number, which other methods
need: unless one of them is named as a passage, that reading comes first.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from studio.intake.detection.column_types import ColumnTable, is_text
from studio.intake.detection.name_heuristics import ANSWERS, ShapeMatch, build_match, join_names
from studio.intake.row_formats.message_formats import to_text
from studio.intake.row_formats.text_pairs import parse_score

_QUERIES = ("anchor", "query", "question", "sent0", "search", "claim", "premise")
_POSITIVES = ("positive", "positives", "pos", "positive_passages", "positive_passage", "sent1")
_NEGATIVE = re.compile(r"(hard_?)?neg(ative)?s?(_(passages?|texts?|docs?))?(_?\d+)?|hard_neg")
_PASSAGES = ("passage", "document", "doc", "passage_text", "document_text")
_TWO_TEXTS = (
    *(("sentence1", "sentence2"), ("premise", "hypothesis"), ("question1", "question2")),
    *(("text1", "text2"), ("sentence_a", "sentence_b"), ("text_a", "text_b")),
)
_SCORES = (
    *("score", "label", "similarity", "similarity_score", "relevance", "relevance_score"),
    *("is_duplicate", "duplicate", "labels", "gold_label", "rating"),
)
_NLI_LABELS = {"-1": "none", "0": "entailment", "1": "neutral", "2": "contradiction"}
_NLI_QUESTION = "Do the labels 0, 1 and 2 mean entailment, neutral and contradiction, as in SNLI?"
_SURE_SHARE = 0.9

PAIR_COLUMN_NAMES = frozenset(
    {
        *(*_QUERIES, *_POSITIVES, *_PASSAGES, *_SCORES, "negative", "negatives", "neg"),
        *(name for pair in _TWO_TEXTS for name in pair),
    }
)
"""All known names of such columns."""


def match_queries(table: ColumnTable) -> Iterator[ShapeMatch]:
    """Yield pairs of a query and a text that answers it, maybe with texts that do not."""
    query, positive = table.find_column(_QUERIES), table.find_column(_POSITIVES)
    passage = table.find_column(_PASSAGES)
    if query is not None and positive is not None:
        negatives = [name for name in table.columns if _NEGATIVE.fullmatch(name.strip().lower())]
        reason = f"Column {positive} holds texts that match those in {query}."
        yield build_match(
            "pairs", reason, "sure", anchor=query, positive=positive, negatives=negatives or None
        )
    elif query is not None and passage is not None and table.find_column(ANSWERS) is None:
        if (score := _score_column(table)) is not None:
            reason = f"Column {score} says which {passage} matches its {query}."
            yield build_match("pairs", reason, "sure", anchor=query, positive=passage, score=score)
        elif all(is_text(table.columns[name]) for name in (query, passage)):
            reason = f"Each {passage} may match its {query}."
            yield build_match("pairs", reason, "likely", anchor=query, positive=passage)


def match_two_texts(table: ColumnTable) -> Iterator[ShapeMatch]:
    """Yield pairs of texts with a score or a label that says how alike they are."""
    for names in _TWO_TEXTS:
        columns = [column for name in names if (column := table.find_column([name])) is not None]
        score = _score_column(table)
        if len(columns) < len(names) or score is None:
            continue
        first, second = columns
        reason = f"Column {score} says how alike {join_names(columns)} are."
        values, question = _read_labels(names, table.columns[score])
        match = build_match("pairs", reason, "likely", anchor=first, positive=second, score=score)
        yield ShapeMatch(
            match.shape,
            match.roles,
            match.reason,
            match.sureness,
            question,
            values={score: values} if values else {},
        )


def _score_column(table: ColumnTable) -> str | None:
    """Return the column that says how alike two texts are."""
    columns = (column for name in _SCORES if (column := table.find_column([name])) is not None)
    return next((column for column in columns if _are_scores(table.columns[column])), None)


def _are_scores(values: Sequence[Any]) -> bool:
    found = sum(parse_score(value) is not None for value in values)
    return bool(values) and found >= _SURE_SHARE * len(values)


def _read_labels(names: tuple[str, ...], values: Sequence[Any]) -> tuple[Mapping[str, str], str]:
    """Return what numbers mean that are labels of inference, and what to ask; else nothing."""
    found = {to_text(value) for value in values}
    if names == ("premise", "hypothesis") and found <= _NLI_LABELS.keys():
        return _NLI_LABELS, _NLI_QUESTION
    return {}, ""
