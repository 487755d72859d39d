"""The sample data as the rows that a run reads."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studio.intake.mapping import Mapping
from studio.intake.row_formats.row_builder import build_row
from studio.starter import samples
from studio.starter.samples import SampleName

Row = dict[str, Any]


def read(name: SampleName) -> list[Row]:
    """Return a sample's rows as its file has them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / samples.filename(name)
        samples.write(name, path)
        with path.open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]


def imported(name: SampleName) -> list[Row]:
    """Return a sample's rows as its import makes them."""
    return [_ROWS[name](row) for row in read(name)]


def said(role: str, text: str) -> list[dict[str, str]]:
    """Return one message, as a conversation."""
    return [{"role": role, "content": text}]


def _comparison(row: Row) -> Row:
    return {
        "messages": said("user", row["prompt"]),
        "chosen": said("assistant", row["chosen"]),
        "rejected": said("assistant", row["rejected"]),
    }


def _rating(row: Row) -> Row:
    messages = [*said("user", row["prompt"]), *said("assistant", row["completion"])]
    return {"messages": messages, "label": row["label"]}


def _label(row: Row) -> Row:
    return {"messages": [*said("user", row["text"]), *said("assistant", row["label"])]}


def _number(row: Row) -> Row:
    messages = [*said("user", row["text"]), *said("assistant", str(row["number"]))]
    return {"messages": messages, "numbers": {"number": float(row["number"])}}


def _entity(row: Row) -> Row:
    mapping = Mapping(shape="spans", roles={"text": ["text"], "spans": ["entities"]})
    return dict(build_row(mapping, row))


_ROWS = {
    "comparisons": _comparison,
    "ratings": _rating,
    "labels": _label,
    "numbers": _number,
    "entities": _entity,
}
