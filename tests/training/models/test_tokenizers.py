"""Which tokenizers can be trained with, and what is set that they lack."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from studio.errors import TrainingError
from studio.training.models import tokenizers


def test_separator_ends_texts_of_berts_tokenizer(tmp_path: Path) -> None:
    """It names no token that ends a text, but has one."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    BertTokenizer({word: number for number, word in enumerate(words)}).save_pretrained(tmp_path)
    loaded = tokenizers.load(str(tmp_path))

    assert (loaded.eos_token, loaded.pad_token) == ("[SEP]", "[PAD]")
    assert loaded("a b")["input_ids"] == [2, 5, 6, 3]


def test_tokenizer_without_any_end_is_refused(tmp_path: Path) -> None:
    inner = Tokenizer(models.WordLevel({"a": 0, "?": 1}, unk_token="?"))  # noqa: S106 -- no password
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner).save_pretrained(tmp_path)

    with pytest.raises(TrainingError, match="no end-of-text token"):
        tokenizers.load(str(tmp_path))
