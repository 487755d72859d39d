"""The table of TRL's files knows each setting of the installed TRL, with its default."""

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from studio.services.recipe_imports.table import NOT_WRITTEN, NoNames, SourceFile
from studio.services.recipe_imports.tools import TOOLS

TABLE = TOOLS["trl"].table
PACKAGE = find_spec("trl")
CONFIGS = {
    "sft": "sft_config.py",
    "dpo": "dpo_config.py",
    "kto": "kto_config.py",
    "reward": "reward_config.py",
    "grpo": "grpo_config.py",
    "rloo": "rloo_config.py",
    "distil": "distillation_config.py",
}
UNKNOWN = object()

pytestmark = pytest.mark.skipif(PACKAGE is None, reason="needs the training packages")


def folder() -> Path:
    return Path(str(PACKAGE and PACKAGE.origin)).parent


def read_fields(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the fields of a file's dataclasses with their defaults, without importing it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, _default(node.value)


def _default(value: ast.expr | None) -> object:
    given = [one.value for one in getattr(value, "keywords", ()) if one.arg == "default"]
    try:
        return ast.literal_eval(given[0]) if given else UNKNOWN
    except ValueError:
        return UNKNOWN


def trainer_arguments() -> list[str]:
    path = folder().parent / "transformers" / "training_args.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    own = next(node for node in classes if node.name == "TrainingArguments")
    fields = (node for node in own.body if isinstance(node, ast.AnnAssign))
    return [node.target.id for node in fields if isinstance(node.target, ast.Name)]


@pytest.mark.parametrize("name", [*CONFIGS.values(), "base_config.py", "model_config.py"])
def test_every_setting_of_trainer_has_row(name: str) -> None:
    fields = [key for key, _default in read_fields(folder() / "trainer" / name)]

    assert [key for key in fields if key not in TABLE] == []


def test_every_setting_of_scripts_has_row() -> None:
    scripts = folder() / "scripts"
    fields = [*read_fields(scripts / "grpo.py"), *read_fields(scripts / "rloo.py")]

    assert [key for key, _default in fields if key not in TABLE] == []


def test_every_argument_of_transformers_has_row() -> None:
    assert [key for key in trainer_arguments() if key not in TABLE] == []


@pytest.mark.parametrize("method", CONFIGS)
def test_defaults_are_those_of_trainer(method: str) -> None:
    file = SourceFile(written={}, defaults=TOOLS["trl"].defaults, known=NoNames(), method=method)
    upstream = dict(read_fields(folder() / "trainer" / CONFIGS[method]))
    ours = {key: file.get(key) for key in upstream if TABLE[key].default is not NOT_WRITTEN}
    # Off is written in several ways.
    wrong = {
        key: (value, upstream[key])
        for key, value in ours.items()
        if upstream[key] is not UNKNOWN and (value or None) != (upstream[key] or None)
    }

    assert wrong == {}
