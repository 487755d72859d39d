"""`studio train`, as it is typed: a recipe to its end, or a sentence on why not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from studio.methods import RECIPE_ADAPTER
from studio.recipe import yaml
from studio.settings import Settings
from tests.support.live_studio import QUICK, Studio

pytestmark = pytest.mark.slow


@pytest.fixture
def home(starter_home: Path, tmp_path: Path) -> Settings:
    return Settings(home=Studio.copied(starter_home, tmp_path / "home").home)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "quick.yaml"
    file.write_text(
        yaml.dump(RECIPE_ADAPTER.validate_python(QUICK, strict=False)), encoding="utf-8"
    )
    return file


def train(home: Settings, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "studio", "train", *words],
        env=os.environ | {"STUDIO_HOME": str(home.home)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_train_command_runs_recipe_to_completion(home: Settings, recipe: Path) -> None:
    done = train(home, str(recipe), "--set", "optimisation.max_steps=4")

    assert done.returncode == 0, done.stderr
    assert "step 4/4  loss " in done.stdout
    assert done.stdout.splitlines()[-1] == f"Done: {home.runs / '1' / 'artifacts'}"
    assert (home.runs / "1" / "artifacts" / "adapter_model.safetensors").exists()


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("optimisation.lerning_rate=1e-4", "optimisation.lerning_rate: Unknown field."),
        ("optimisation.learning_rate=-1", "optimisation.learning_rate: Must be more than 0"),
        ("base_model=startr", "There is no model named startr."),
        ("nothing", "nothing is not a valid change."),
    ],
)
def test_invalid_change_fails_without_traceback(
    home: Settings, recipe: Path, change: str, said: str
) -> None:
    done = train(home, str(recipe), "--set", change)

    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert said in done.stderr


def test_unknown_recipe_key_is_named(home: Settings, recipe: Path) -> None:
    with recipe.open("a") as file:
        file.write("learning_rte: 0.1\n")

    assert "learning_rte: Unknown field." in train(home, str(recipe)).stderr


def test_invalid_yaml_error_names_line(home: Settings, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("a: [1\nb: 2")

    assert "Invalid YAML at line 2" in train(home, str(tmp_path / "broken.yaml")).stderr
