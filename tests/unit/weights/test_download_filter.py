"""Which files of a model are fetched, and which never."""

import pytest

from studio.errors import InvalidError
from studio.weights import model_files

WHOLE = ["config.json", "model.safetensors", "tokenizer.json", "README.md"]


def test_only_training_files_are_selected() -> None:
    others = ["pytorch_model.bin", "optimizer.pt", "model.ckpt", "modeling_own.py", "onnx/m.onnx"]
    found = model_files.files_to_download(
        [*WHOLE, *others, "original/model.safetensors", "../config.json"]
    )

    assert found == ["config.json", "tokenizer.json", "README.md", "model.safetensors"]


def test_shards_follow_index_without_duplicates() -> None:
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (2, 1)]
    names = ["config.json", "model.safetensors.index.json", "consolidated.safetensors", *shards]

    assert model_files.files_to_download(names) == [
        "config.json",
        "model.safetensors.index.json",
        *reversed(shards),
    ]


def test_pickled_hub_weights_are_rejected_with_converter_hint() -> None:
    with pytest.raises(InvalidError) as refused:
        model_files.check_hub_files("a/b", ["config.json", "pytorch_model.bin"])

    assert refused.value.message == (
        "a/b has no safetensors: its weights are pickled, and loading them can run code."
    )
    assert model_files.CONVERTER_URL in refused.value.hint


def test_repository_without_weights_is_rejected() -> None:
    with pytest.raises(InvalidError, match="has no trainable weights"):
        model_files.check_hub_files("a/b", ["config.json", "model.gguf"])


def test_pickle_files_beside_safetensors_are_accepted() -> None:
    model_files.check_folder_files("/m", ["model.safetensors", "training_args.bin"])
    model_files.check_hub_files("a/b", [*WHOLE, "pytorch_model.bin"])
