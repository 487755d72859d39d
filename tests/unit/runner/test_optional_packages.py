"""Optional packages seem absent to a run that does not need them."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from studio.hardware import OPTIONAL_PACKAGES
from studio.recipe import yaml
from tests.support.factories import make_recipe

LOOK = """
import sys, importlib.util
from pathlib import Path
from studio.hardware import OPTIONAL_PACKAGES
from studio.protocols.run_dir import RunDir
from studio.runner.optional_packages import block_unused_packages

block_unused_packages(RunDir(Path(sys.argv[1])))
print(*sorted(name for name in OPTIONAL_PACKAGES if importlib.util.find_spec(name)))
"""
FULL = {"adapter": {"kind": "full"}}


def found_by_a_run(folder: Path) -> str:
    command = [sys.executable, "-c", LOOK, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize(("precision", "expected"), [("bf16", ""), ("fp8", "torchao")])
def test_only_packages_needed_by_recipe_are_importable(
    precision: str, expected: str, tmp_path: Path
) -> None:
    recipe = make_recipe(precision=precision, **FULL)
    (tmp_path / "recipe.yaml").write_text(yaml.dump(recipe), encoding="utf-8")

    assert found_by_a_run(tmp_path) == expected


def test_unreadable_recipe_blocks_no_packages(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("- no recipe", encoding="utf-8")

    installed = sorted(name for name in OPTIONAL_PACKAGES if find_spec(name))
    assert {"scipy", "sklearn", "torchao"} <= set(installed)
    assert found_by_a_run(tmp_path) == " ".join(installed)
