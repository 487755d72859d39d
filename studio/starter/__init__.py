"""The included sample data: instruction rows, and the text the base model is pretrained on.

`python -m tests.tools.starter.build` writes the files beside this module.
"""

import json
import lzma
import shutil
from collections.abc import Iterator
from pathlib import Path

PAD, START, END = "<|pad|>", "<|start|>", "<|end|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
"""Special tokens of the pretraining text."""

SPLITS = ("train.jsonl", "validation.jsonl")
PRETRAINING_TEXT = "pretraining.jsonl"


def write_rows(folder: Path) -> None:
    """Write the instruction rows of both splits, one conversation a line."""
    for name in SPLITS:
        with lzma.open(data_path(name)) as packed, (folder / name).open("wb") as file:
            shutil.copyfileobj(packed, file)


def pretraining_documents() -> Iterator[str]:
    """Yield the documents of the base model, with the special tokens that delimit them."""
    with lzma.open(data_path(PRETRAINING_TEXT), "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def data_path(name: str) -> Path:
    """Return where the compressed content of a file is."""
    return Path(__file__).with_name(f"{name}.xz")
