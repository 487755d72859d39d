"""The starter's questions with their answers, as pairs of texts."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from studio import starter
from tests.training.tiny import Row

MOST, MIN_CHARS = 1500, 16


def read() -> list[Row]:
    """Return questions with answers that are long enough to belong to one of them."""
    with TemporaryDirectory() as folder:
        starter.write_rows(Path(folder))
        with (Path(folder) / "train.jsonl").open(encoding="utf-8") as lines:
            exchanges = [json.loads(line)["messages"] for line in lines]
    return [
        {"anchor": question["content"], "positive": answer["content"]}
        for question, answer, *rest in exchanges
        if not rest and len(answer["content"]) >= MIN_CHARS
    ][:MOST]
