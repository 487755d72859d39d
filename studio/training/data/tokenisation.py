"""Turn rows into examples: tokenise, truncate, count and batch them.

Tokenised data is cached for later runs that would tokenise the same rows in the same way. Entries
are keyed by a hash of everything they depend on, so none is ever stale. A file is written
completely and then renamed, so readers never see a partial one.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from datasets import Dataset
from datasets.table import InMemoryTable
from pyarrow import ipc
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

from studio.errors import TrainingError
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.labels import IGNORE_INDEX, label_rows
from studio.training.data.rows import TrainingRow
from studio.training.models import tokenizers


@dataclass(frozen=True, slots=True)
class Examples:
    """Tokenised rows, and counts of what was left out."""

    data: Dataset
    """Columns `input_ids` and `labels`, and those that a method adds."""
    rows: list[TrainingRow]
    dropped: int
    """Rows with nothing to train on after truncation."""
    truncated: int
    tokens: int
    longest: int = 0
    """Tokens of the longest example."""
    longest_answer: int = 0
    """Most trained tokens in one example."""
    longest_row: int = 0
    """Tokens of the longest row, before truncation."""
    cut_off: int = 0
    """Dropped rows whose answers all begin after the maximum sequence length."""
    too_long: int = 0
    """Dropped rows that are longer than it, of a method that truncates none."""
    packs: Sequence[Sequence[int]] | None = None
    """Which rows share an example, by index; None if rows are not packed."""

    @property
    def count(self) -> int:
        """Number of examples the model reads."""
        return len(self.rows if self.packs is None else self.packs)


def tokenise(
    rows: Sequence[TrainingRow],
    template: ChatTemplate | None,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
) -> Examples:
    """Tokenise, label and truncate the rows; drop those with nothing left to train on."""
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": []}
    kept_rows: list[TrainingRow] = []
    truncated = tokens = longest_row = cut_off = 0
    for row, labelled in zip(rows, label_rows(rows, template, tokenizer), strict=True):
        ids, labels = labelled.ids, labelled.labels
        truncated += len(ids) > max_length
        longest_row = max(longest_row, len(ids))
        # The first token is never predicted, so its label has no effect.
        if any(label != IGNORE_INDEX for label in labels[1:max_length]):
            columns["input_ids"].append(ids[:max_length])
            columns["labels"].append(labels[:max_length])
            kept_rows.append(row)
            tokens += min(len(ids), max_length)
        else:
            cut_off += any(label != IGNORE_INDEX for label in labels[1:])
    return Examples(
        Dataset.from_dict(columns),
        kept_rows,
        dropped=len(rows) - len(kept_rows),
        truncated=truncated,
        tokens=tokens,
        longest=max(map(len, columns["input_ids"]), default=0),
        longest_answer=max(map(_count_trained, columns["labels"]), default=0),
        longest_row=longest_row,
        cut_off=cut_off,
    )


def row_tensors(data: Dataset) -> list[dict[str, torch.Tensor]]:
    """Return the rows as views into the dataset's memory, without copying or decoding."""
    columns = {name: _tensor_views(data, name) for name in data.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(frozen=True, slots=True)
class Collator:
    """Makes a batch of examples, padded on the right to the longest of them.

    For packed rows, upstream separates them by position ids that restart at zero, and only if there
    is no attention mask. Padding is then one more row, and `tokens` counts the others.
    """

    pad_token_id: int

    def __call__(self, rows: Sequence[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        ids = [row["input_ids"] for row in rows]
        labels = [row["labels"] for row in rows]
        lengths = torch.tensor([len(row) for row in ids])
        batch = {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id),
            "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX),
        }
        indices = torch.arange(int(lengths.max()))
        if "position_ids" not in rows[0]:
            return batch | {"attention_mask": (indices < lengths[:, None]).long()}
        positions = (indices - lengths[:, None]).clamp(min=0)
        for padded, row in zip(positions, rows, strict=True):
            padded[: len(row["position_ids"])] = row["position_ids"]
        return batch | {"position_ids": positions, "tokens": lengths}


def refuse_empty(examples: Examples, part: str, max_length: int) -> None:
    """Raise a TrainingError if a part of the data has no rows left."""
    if examples.rows:
        return
    if examples.too_long:
        raise TrainingError(
            "sequence_too_long",
            f"{examples.too_long:,} of {examples.dropped:,} rows of the {part} data are longer "
            f"than {max_length:,} tokens, and rows with images are not truncated.",
            hint=f'Raise "Max sequence length": the longest row has {examples.longest_row:,} '
            "tokens. Or let images have fewer pixels.",
            longest=examples.longest_row,
        )
    if not examples.cut_off:
        raise TrainingError(
            "all_labels_masked",
            f"None of the {examples.dropped:,} rows of the {part} data has an answer to train on.",
            hint="Check the column mapping: answers must be assistant turns.",
        )
    others = examples.dropped - examples.cut_off
    rest = f"; the other {others:,} have no answer" if others else ""
    raise TrainingError(
        "sequence_too_long",
        f"{examples.cut_off:,} of {examples.dropped:,} rows of the {part} data are truncated to "
        f"{max_length:,} tokens, before their answers begin{rest}.",
        hint=f'Raise "Max sequence length": the longest row has {examples.longest_row:,} tokens.',
        longest=examples.longest_row,
    )


def _count_trained(labels: Sequence[int]) -> int:
    return len(labels) - labels.count(IGNORE_INDEX)


def _tensor_views(data: Dataset, name: str) -> tuple[torch.Tensor, ...]:
    rows = data.data.column(name).combine_chunks()
    # Arrow's memory must not be written to, and nothing here writes to it.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        values = torch.from_numpy(rows.flatten().to_numpy())
    return torch.split(values, rows.value_lengths().to_pylist())


_FORMAT_VERSION = 5
"""Increment this when the meaning of the stored data changes."""

_METADATA_KEY = b"studio"
_ROW_COLUMN = "studio_row"
"""Which row an example is of; no method has a column of this name."""


@dataclass(frozen=True, slots=True)
class TokenCache:
    folder: Path
    limit_bytes: int = 4 * 10**9
    """Total size of the cache; the least recently used entries are dropped first."""

    def get_or_make(
        self, key: str, rows: Sequence[TrainingRow], make: Callable[[], Examples]
    ) -> Examples:
        """Return the entry for a key made of these rows, or make and store it."""
        path = self.folder / f"{key}.arrow"
        try:
            cached = _read(path, rows)
        except (OSError, pa.ArrowInvalid):
            examples = make()
            self._save(path, examples, rows)
            return examples
        print("tokenised by an earlier run", flush=True)  # noqa: T201 -- the run's own log
        return cached

    def _save(self, path: Path, examples: Examples, rows: Sequence[TrainingRow]) -> None:
        try:
            _write(path, examples, rows)
            self._evict()
        except OSError as error:  # A full disk must not end a run just to speed up the next one.
            print(f"not cached for later runs: {error}", flush=True)  # noqa: T201 -- the run's own log

    def _evict(self) -> None:
        remaining_bytes = self.limit_bytes
        for path in sorted(self.folder.glob("*.arrow"), key=_last_used, reverse=True):
            remaining_bytes -= path.stat().st_size
            if remaining_bytes < 0:
                path.unlink(missing_ok=True)


def cache_key(
    rows: Sequence[TrainingRow], tokenizer: PreTrainedTokenizerBase, max_length: int, kind: str
) -> str:
    """Return a hash of everything that decides how rows become tokens.

    `kind` names the function that tokenises them.
    """
    settings = {
        "kind": kind,
        "layout": _FORMAT_VERSION,
        "versions": [version(name) for name in ("tokenizers", "transformers", "jinja2")],
        "template": tokenizer.chat_template,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "length": max_length,
        "images": str(tokenizers.image_tokens(tokenizer)),
    }
    contents = [
        (
            *(row.messages, row.tools, row.text, row.rejected, row.is_good),
            *(row.steps, row.correct, row.words, row.pair),
        )
        for row in rows
    ]
    parts = (json.dumps(settings), tokenizer.backend_tokenizer.to_str(), json.dumps(contents))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path, rows: Sequence[TrainingRow]) -> Examples:
    with pa.memory_map(str(path)) as file, ipc.open_stream(file) as stream:
        table = stream.read_all()
    os.utime(path)
    return Examples(
        data=Dataset(InMemoryTable(table.drop_columns([_ROW_COLUMN]).replace_schema_metadata())),
        rows=[rows[i] for i in table.column(_ROW_COLUMN).to_pylist()],
        **json.loads(table.schema.metadata[_METADATA_KEY]),
    )


def _write(path: Path, examples: Examples, rows: Sequence[TrainingRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    row_indices = pa.array(_row_indices(examples.rows, rows), pa.int64())
    counts = {field.name: getattr(examples, field.name) for field in fields(examples)}
    counters = {name: count for name, count in counts.items() if isinstance(count, int)}
    table = examples.data.data.table.append_column(_ROW_COLUMN, row_indices)
    table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(counters)})
    new = path.with_suffix(f".{os.getpid()}.new")
    try:
        with ipc.new_stream(str(new), table.schema) as stream:
            stream.write_table(table)
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def _last_used(path: Path) -> float:
    return path.stat().st_mtime


def _row_indices(kept_rows: Sequence[TrainingRow], rows: Sequence[TrainingRow]) -> Iterator[int]:
    """Yield the index of each kept row among all rows; both are in the same order.

    A row that became several examples is kept as often.
    """
    index = 0
    for kept_row in kept_rows:
        while rows[index] != kept_row:
            index += 1
        yield index
