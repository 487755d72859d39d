"""Cache tokenised data for later runs that would tokenise the same rows in the same way.

Entries are keyed by a hash of everything they depend on, so none is ever stale. A file is written
completely and then renamed, so readers never see a partial one.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa
from datasets import Dataset
from datasets.table import InMemoryTable
from pyarrow import ipc
from transformers import PreTrainedTokenizerBase

from studio.training.data.rows import TrainingRow
from studio.training.data.tokenisation import Examples

_FORMAT_VERSION = 2
"""Increment this when the meaning of the stored data changes."""

_METADATA_KEY = b"studio"


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
    rows: Sequence[TrainingRow], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> str:
    """Return a hash of everything that decides how rows become tokens."""
    settings = {
        "layout": _FORMAT_VERSION,
        "versions": [version(name) for name in ("tokenizers", "transformers", "jinja2")],
        "template": tokenizer.chat_template,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "length": max_length,
    }
    contents = [(row.messages, row.tools, row.text) for row in rows]
    parts = (json.dumps(settings), tokenizer.backend_tokenizer.to_str(), json.dumps(contents))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _read(path: Path, rows: Sequence[TrainingRow]) -> Examples:
    with pa.memory_map(str(path)) as file, ipc.open_stream(file) as stream:
        table = stream.read_all()
    os.utime(path)
    return Examples(
        data=Dataset(InMemoryTable(table.drop_columns(["row"]).replace_schema_metadata())),
        rows=[rows[i] for i in table.column("row").to_pylist()],
        **json.loads(table.schema.metadata[_METADATA_KEY]),
    )


def _write(path: Path, examples: Examples, rows: Sequence[TrainingRow]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    row_indices = pa.array(_row_indices(examples.rows, rows), pa.int64())
    counts = {field.name: getattr(examples, field.name) for field in fields(examples)}
    counters = {name: count for name, count in counts.items() if isinstance(count, int)}
    table = examples.data.data.table.append_column("row", row_indices)
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
    """Yield the index of each kept row among all rows; both are in the same order."""
    numbered = iter(enumerate(rows))
    for kept_row in kept_rows:
        yield next(index for index, row in numbered if row == kept_row)
