"""Tokenised data that the next run finds: the same tokens, or made anew."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from studio.protocols.run_dir import JobSpec
from studio.runner.execution import execute_run
from studio.training.data import tokenisation
from studio.training.data.chat_templates import ChatTemplate
from studio.training.data.rows import TrainingRow, to_training_row
from studio.training.data.tokenisation import Examples, TokenCache, cache_key
from studio.training.rollouts import prompts
from studio.training.stop_handler import StopHandler
from tests.training import tiny

pytestmark = pytest.mark.slow

LENGTH = 30
KIND = "a function"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return tiny.tokenizer()


def rows() -> list[TrainingRow]:
    told = [TrainingRow(messages=row["messages"]) for row in tiny.rows()]
    nothing = TrainingRow(messages=[{"role": "user", "content": "Nothing to train on."}])
    return [*told[:5], nothing, *told[5:9]]


def made(those: Sequence[TrainingRow], tokenizer: PreTrainedTokenizerBase) -> Examples:
    return tokenisation.tokenise(those, ChatTemplate(tokenizer), tokenizer, LENGTH)


def never() -> Examples:
    pytest.fail("It was made again.")


def plain(examples: Examples) -> list[Any]:
    tokens = [{name: part.tolist() for name, part in row.items()} for row in tensors(examples)]
    return [tokens, examples.rows, examples.dropped, examples.truncated, examples.tokens]


def tensors(examples: Examples) -> list[dict[str, torch.Tensor]]:
    return tokenisation.row_tensors(examples.data)


def test_cached_examples_are_reused(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    cache = TokenCache(tmp_path / "cache")
    first = cache.get_or_make("key", rows(), lambda: made(rows(), tokenizer))
    again = cache.get_or_make("key", rows(), never)

    assert plain(again) == plain(first) == plain(made(rows(), tokenizer))
    assert (again.dropped, again.truncated > 0) == (1, True)
    assert [part.name for part in cache.folder.iterdir()] == ["key.arrow"]


def test_cached_prompts_are_reused(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """They say themselves which row they are of."""
    template = ChatTemplate(tokenizer)
    cache = TokenCache(tmp_path / "cache")
    first = cache.get_or_make(
        "key", rows(), lambda: prompts.tokenise(rows(), template, tokenizer, LENGTH)
    )
    again = cache.get_or_make("key", rows(), never)

    assert plain(again) == plain(first)
    assert [row["index"].tolist() for row in tensors(again)] == [
        [i] for i in range(len(again.rows))
    ]


def test_cached_run_equals_uncached_run(model: Path, tmp_path: Path) -> None:
    runs = [tiny.write_run(tmp_path / name, model) for name in ("without", "makes", "finds")]
    for run in runs[1:]:
        spec = JobSpec.model_validate_json(run.job.read_text(encoding="utf-8"))
        kept = spec.model_copy(update={"cache": tmp_path / "cache"})
        run.job.write_text(kept.model_dump_json(), encoding="utf-8")
    codes = [execute_run(run.root, StopHandler()) for run in runs]

    losses = [tiny.metric_values(run, "loss") for run in runs]
    assert codes == [0, 0, 0]
    assert losses[1] == losses[2] == losses[0]
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_cache_key_depends_on_rows_length_tokenizer_and_function(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    marked, other = tiny.tokenizer(tiny.WITH_MARKS), tiny.tokenizer()
    other.add_special_tokens({"bos_token": "<|im_start|>"})
    keys = [
        cache_key(rows(), tokenizer, LENGTH, KIND),
        cache_key(rows()[1:], tokenizer, LENGTH, KIND),
        cache_key(rows(), tokenizer, LENGTH + 1, KIND),
        cache_key(rows(), marked, LENGTH, KIND),
        cache_key(rows(), other, LENGTH, KIND),
        cache_key(rows(), tokenizer, LENGTH, "another function"),
    ]

    assert len(set(keys)) == len(keys)
    assert cache_key(rows(), tiny.tokenizer(), LENGTH, KIND) == keys[0]


def test_cache_key_depends_on_verdicts_and_words(tokenizer: PreTrainedTokenizerBase) -> None:
    """Rows with the same text may label other tokens of it."""
    turn = {"role": "user", "content": "a"}
    those = [
        *(
            {"messages": [turn], "steps": ["a b"], "correct": [verdict]}
            for verdict in (True, False)
        ),
        *({"text": "a b", "words": words, "tags": ["O"]} for words in (["a"], ["a b"])),
    ]
    keys = [
        cache_key([to_training_row(row, 1, "training")], tokenizer, LENGTH, KIND) for row in those
    ]

    assert len(set(keys)) == len(keys)


def test_broken_cache_file_is_rebuilt(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    cache = TokenCache(tmp_path)
    whole = cache.get_or_make("key", rows(), lambda: made(rows(), tokenizer))
    path = tmp_path / "key.arrow"
    path.write_bytes(path.read_bytes()[:200])

    again = cache.get_or_make("key", rows(), lambda: made(rows(), tokenizer))
    assert plain(again) == plain(whole)
    assert plain(cache.get_or_make("key", rows(), never)) == plain(whole)


def test_unwritable_cache_does_not_fail(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be", encoding="utf-8")

    found = TokenCache(tmp_path / "cache").get_or_make(
        "key", rows(), lambda: made(rows(), tokenizer)
    )
    assert plain(found) == plain(made(rows(), tokenizer))


def test_least_recently_used_entry_is_evicted_first(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    examples = made(rows(), tokenizer)
    TokenCache(tmp_path).get_or_make("size", rows(), lambda: examples)
    two = 2 * (tmp_path / "size.arrow").stat().st_size
    cache = TokenCache(tmp_path, limit_bytes=two)
    cache.get_or_make("second", rows(), lambda: examples)
    cache.get_or_make("size", rows(), never)
    cache.get_or_make("third", rows(), lambda: examples)

    assert {path.stem for path in tmp_path.iterdir()} == {"size", "third"}
