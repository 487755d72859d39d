"""Flatten SQuAD's nested JSON to one row per question: articles hold paragraphs with questions."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from studio.intake.raw_rows import FileNote, RawRow, RowStream


def flatten_articles(rows: RowStream) -> RowStream:
    """Yield each question of an article as a row, and all other rows as they are.

    Rows are renumbered from the first article on, because one article holds many.
    """
    number = 0
    for row in rows:
        if isinstance(row, RawRow) and _is_article(row.values):
            for values in _questions(row.values):
                number += 1
                yield replace(row, number=number, values=values)
        elif isinstance(row, FileNote) or not number:
            yield row
        else:
            number += 1
            yield replace(row, number=number)


def _is_article(values: dict[str, Any]) -> bool:
    match values.get("paragraphs"):
        case [{"context": str(), "qas": list()}, *_]:
            return True
    return False


def _questions(article: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for paragraph in article["paragraphs"]:
        match paragraph:
            case {"context": context, "qas": [*questions]}:
                title = {"title": article["title"]} if "title" in article else {}
                for question in questions:
                    values = question if isinstance(question, dict) else {"question": question}
                    yield (
                        title | {"context": context} | values | _answer_spans(values.get("answers"))
                    )


def _answer_spans(answers: Any) -> dict[str, Any]:  # noqa: ANN401 -- from a user's file
    """Return the answers to a question in the format of SQuAD on Hugging Face."""
    match answers:
        case [*spans] if all(isinstance(span, dict) for span in spans):
            names = ("text", "answer_start")
            return {"answers": {name: [span.get(name) for span in spans] for name in names}}
    return {}
