"""Code that a model brings is found, and known by its hash."""

import json
from pathlib import Path

import pytest

from studio.errors import InvalidError
from studio.weights import model_files

OWN = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.Own"}


def write(folder: Path, wanted: object, **files: str) -> Path:
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": wanted}))
    for name, content in files.items():
        (folder / f"{name}.py").write_text(content)
    return folder


def test_code_is_requested_by_config_auto_map(tmp_path: Path) -> None:
    found = model_files.read(write(tmp_path, OWN, modeling_own="1"))

    assert (found.requested, found.files, found.missing_files) == (
        ("configuration_own.OwnConfig", "modeling_own.Own"),
        ("modeling_own.py",),
        ("configuration_own.py",),
    )


def test_tokenizer_alone_may_request_code(tmp_path: Path) -> None:
    asked = {"auto_map": {"AutoTokenizer": ["tokenization_own.Own", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(asked))

    assert model_files.read(tmp_path).requested == ("tokenization_own.Own",)


def test_unreferenced_python_files_are_not_model_code(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "train.py").write_text("print()")

    assert model_files.read(tmp_path) == model_files.ModelCode()


def test_any_file_change_changes_code_hash(tmp_path: Path) -> None:
    before = model_files.read(write(tmp_path, OWN, modeling_own="1", beside="1")).sha256
    after = model_files.read(write(tmp_path, OWN, beside="2")).sha256

    assert before != after


def test_code_from_other_repositories_is_listed_as_external(tmp_path: Path) -> None:
    found = model_files.read(write(tmp_path, {"AutoConfig": "evil/repo--modeling.Own"}))

    assert (found.external, found.missing_files) == (("evil/repo--modeling.Own",), ())


@pytest.mark.parametrize("content", ["[" * 100_000, "nonsense", "[]", " " * (17 * 2**20)])
def test_invalid_tokenizer_config_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(InvalidError):
        model_files.read(tmp_path)
