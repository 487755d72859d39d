"""Models whose files tell that no run could use them: refused when a run is submitted."""

from pathlib import Path

import pytest
from sqlmodel import Session

from studio.errors import InvalidError
from studio.services.runs import runs, start_checks
from tests.support.factories import make_recipe
from tests.unit.weights import safetensors_folders

FULL = {"adapter": {"kind": "full"}}


def test_untrainable_run_is_rejected_before_queueing(db: Session, tmp_path: Path) -> None:
    folder = safetensors_folders.write(tmp_path / "model", {"a": ("F32", [70000.0])})
    recipe = make_recipe(base_model=str(folder), precision="fp16", **FULL)

    with pytest.raises(InvalidError) as caught:
        runs.check(db, recipe)
    assert (caught.value.param, caught.value.message) == (
        "precision",
        "1 of 1 sampled weights exceed 65,504, the largest float16 value; the largest is 70,000.",
    )


def test_incomplete_model_file_is_rejected_before_queueing(db: Session, tmp_path: Path) -> None:
    folder = safetensors_folders.write(tmp_path / "model", {"a": ("F32", [1.0, 2.0])})
    whole = folder / "model.safetensors"
    whole.write_bytes(whole.read_bytes()[:-1])

    with pytest.raises(InvalidError, match=r"model.safetensors cannot be used: it is incomplete\."):
        runs.check(db, make_recipe(base_model=str(folder)))


def test_languages_of_a_translator_are_checked_before_queueing(db: Session, tmp_path: Path) -> None:
    folder = safetensors_folders.write(tmp_path / "model", {"a": ("F32", [1.0, 2.0])})
    (folder / "config.json").write_text('{"model_type": "mbart", "is_encoder_decoder": true}')
    tokens = '{"extra_special_tokens": ["en_XX", "fr_XX"]}'
    (folder / "tokenizer_config.json").write_text(tokens)
    rewriting = {"source_language": "en_XX", "target_language": "nl_XX"}
    recipe = make_recipe(method="seq2seq", base_model=str(folder), rewriting=rewriting)

    (refused,) = start_checks.check_languages(db, recipe)

    assert (refused.param, refused.message) == (
        "rewriting.source_language",
        "This model has no language nl_XX.",
    )
    assert refused.hint == "It has 2 languages, such as en_XX, fr_XX."
