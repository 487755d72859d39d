"""Texts that belong together: with texts that do not belong to them, or with how alike they are."""

from typing import Any

from studio.intake.problems import ProblemCode
from studio.intake.row_formats.message_formats import (
    MappedRow,
    is_number,
    parse_json_cell,
    require_text,
    to_text,
)
from studio.intake.row_formats.schema import PairRow, UnusableRowError

_KEYS = ("text", "content", "passage", "contents", "body")
"""Where a passage that is an object has its text."""

_SCORES = {
    **dict.fromkeys(("entailment", "duplicate", "paraphrase", "equivalent", "relevant"), 1.0),
    **dict.fromkeys(("true", "yes", "positive", "similar", "match"), 1.0),
    "neutral": 0.5,
    **dict.fromkeys(("contradiction", "not_duplicate", "not_paraphrase", "not_equivalent"), 0.0),
    **dict.fromkeys(("irrelevant", "not_relevant", "not_entailment"), 0.0),
    **dict.fromkeys(("false", "no", "negative", "different", "no_match"), 0.0),
}
"""How alike two texts with a label are."""


def build_pair(cells: MappedRow, _system: str) -> PairRow:
    """Return two texts, with the texts that do not match the first one, or with their score.

    Raises:
        UnusableRowError: a text is missing, or the score is none.

    """
    anchor, positives = cells.text("anchor").strip(), _texts(cells.value("positive"))
    if not anchor or not positives:
        raise UnusableRowError(ProblemCode.NO_PAIR)
    if len(positives) > 1:
        raise UnusableRowError(ProblemCode.SEVERAL_POSITIVES, "; ".join(positives)[:50])
    row: PairRow = {"anchor": anchor, "positive": positives[0]}
    scores = list(cells.by_column("score").values())
    if scores:
        if (score := parse_score(scores[0])) is None:
            raise UnusableRowError(ProblemCode.NO_SIMILARITY, to_text(scores[0])[:50])
        return {**row, "score": score}
    listed = [text for value in cells.by_column("negatives").values() for text in _texts(value)]
    # A text cannot be both.
    negatives = [text for text in dict.fromkeys(listed) if text != row["positive"]]
    return {**row, "negatives": negatives} if negatives else row


def parse_score(value: Any) -> float | None:  # noqa: ANN401 -- from a user's file
    """Return how alike two texts are by a number or a label; None if it says nothing of that."""
    text = to_text(value).strip()
    if is_number(text):
        return float(text)
    return _SCORES.get(text.lower().replace(" ", "_").replace("-", "_"))


def _texts(value: Any) -> list[str]:  # noqa: ANN401 -- from a user's file
    """Return the texts of a cell: of a text, an object with a text, or a list of these."""
    parsed = parse_json_cell(value)
    items = parsed if isinstance(parsed, list) else [parsed]
    if isinstance(value, str) and not all(map(_is_passage, items)):
        items = [value]  # The text itself is JSON.
    found = [require_text(_text_of(item)).strip() for item in items]
    return list(dict.fromkeys(filter(None, found)))


def _is_passage(item: Any) -> bool:  # noqa: ANN401 -- from a user's file
    return isinstance(item, str) or (isinstance(item, dict) and _text_of(item) is not item)


def _text_of(item: Any) -> Any:  # noqa: ANN401 -- from a user's file
    if not isinstance(item, dict):
        return item
    text = next((item[key] for key in _KEYS if isinstance(item.get(key), str)), None)
    if text is None:
        return item
    title = item.get("title")
    return f"{title}\n{text}" if isinstance(title, str) and title else text
