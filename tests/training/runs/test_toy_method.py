"""A new method is one folder and one line: everything else finds it, through a real run."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.live_studio import (
    ROOT,
    UNVERIFIED_TLS,
    ApiClient,
    Studio,
    get_run,
    stop_everything,
)
from tests.support.page_reader import Node, form_fields, parse_page
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

THE_LINE = '    "toy",\n'
FOLDER = {
    "__init__.py": '''\
"""Train on weighted losses: the least that a method can be."""

from typing import Annotated, Literal

from annotated_types import Gt, Le

from studio.methods.base import Method, Preset
from studio.metrics import NEXT_TOKEN, MethodMetrics, MetricSpec
from studio.recipe.base import Recipe
from studio.recipe.fields import FieldSpec, Section

CONFIDENCE = MetricSpec(
    key="eval_confidence",
    title="Validation confidence",
    source="eval",
    better="higher",
    is_objective=True,
)


class Weighting(Section):
    """How much each loss counts."""

    loss_weight: Annotated[float, Gt(0), Le(10), FieldSpec("Loss weight")] = 1.0
    """Every loss is multiplied by it."""


class ToyRecipe(Recipe):
    """Train on weighted losses."""

    method: Literal["toy"] = "toy"
    weighting: Weighting = Weighting()


METHOD = Method(
    name="toy",
    title="Toy training",
    purpose="Learn like a toy",
    summary="Train on weighted losses.",
    recipe=ToyRecipe,
    metrics=MethodMetrics((*NEXT_TOKEN.own, CONFIDENCE), objective=CONFIDENCE),
    trains_on={"conversation": "Toys train on the answers."},
    presets=(Preset(name="play", title="Play", summary="A toy's default."),),
)
''',
    "trainer.py": '''\
"""The torch side of toy training."""

import math

from studio.methods.toy import CONFIDENCE, METHOD
from studio.training.data.tokenisation import tokenise
from studio.training.monitoring import early_stopping
from studio.training.next_token import NextTokenTrainer
from studio.training.run_trainer import build_arguments


def build(recipe, job):
    args = build_arguments(recipe, job, METHOD.objective)
    trainer = ToyTrainer(job, args, early_stopping.callbacks(recipe))
    trainer.loss_weight = recipe.weighting.loss_weight
    return trainer


class ToyTrainer(NextTokenTrainer):
    def compute_loss(self, *args, **kwargs):
        return self.loss_weight * super().compute_loss(*args, **kwargs)

    def evaluation_loop(self, *args, **kwargs):
        output = super().evaluation_loop(*args, **kwargs)
        output.metrics[CONFIDENCE.key] = math.exp(-output.metrics["eval_loss"])
        return output
''',
}
RECIPE = """\
method: toy
base_model: starter
dataset: starter
precision: fp32
weighting:
  loss_weight: 0.5
optimisation:
  max_steps: 4
  per_device_train_batch_size: 4
data:
  max_length: 64
evaluation:
  per_device_eval_batch_size: 64
samples:
  prompts: 0
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the studio, and add a method to it."""
    copy: Path = tmp_path_factory.mktemp("toy") / "checkout"
    for name in ("studio", "templates", "static", "migrations"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    listed = copy / "studio" / "methods" / "__init__.py"
    before, last, after = listed.read_text(encoding="utf-8").partition('    "cpt",\n')
    listed.write_text(before + last + THE_LINE + after, encoding="utf-8")
    folder = copy / "studio" / "methods" / "toy"
    folder.mkdir()
    for name, text in FOLDER.items():
        (folder / name).write_text(text, encoding="utf-8")
    return copy


@pytest.fixture(scope="module")
def studio(
    checkout: Path, starter_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Studio]:
    """Start a studio, its worker and its runs from the copy."""
    studio = Studio.copied(starter_home, tmp_path_factory.mktemp("toy-home") / "home")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(checkout)
        patched.setenv("PYTHONPATH", str(checkout))
        studio.start()
        yield studio
        stop_everything(studio)


def run_command(checkout: Path, *words: str, **environment: str) -> str:
    """Run the command line of the copy, and return what it printed."""
    return subprocess.run(
        [sys.executable, "-m", "studio", *words],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)} | environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def open_page(studio: Studio, path: str) -> Node:
    answer = httpx2.get(studio.url + path, timeout=60, trust_env=False, verify=UNVERIFIED_TLS)
    assert answer.status_code == httpx2.codes.OK, path
    return parse_page(answer.text)


def test_the_form_offers_it(studio: Studio) -> None:
    page = open_page(studio, "/new?method=toy")
    form = page.one(id="form")

    purposes = [one.one("strong").text for one in page.all("button", class_="choice")]
    assert "Learn like a toy" in purposes
    assert dict(form_fields(form))["weighting.loss_weight"] == "1"


def test_a_data_set_offers_it(studio: Studio) -> None:
    links = {one.text for one in open_page(studio, "/datasets/1").all("a")}

    assert "Learn like a toy" in links


def test_rest_describes_it(studio: Studio) -> None:
    found = studio.api.get("/methods/toy").raise_for_status().json()
    described = ApiClient(studio.url).get("/openapi.json").raise_for_status().json()

    assert found["recipe_schema"]["$defs"]["Weighting"]["properties"].keys() == {"loss_weight"}
    assert "ToyRecipe" in described["components"]["schemas"]


def test_its_own_setting_has_its_limits(studio: Studio) -> None:
    recipe = {"method": "toy", "base_model": "starter", "dataset": "starter"}
    wrong = {"name": "toy", "recipe": recipe | {"weighting": {"loss_weight": 11}}}
    answer = studio.api.post("/experiments", json=wrong)

    (error,) = answer.json()["error"]["errors"]
    assert (answer.status_code, error["param"]) == (422, "recipe.weighting.loss_weight")


def test_a_sweep_optimises_its_objective(studio: Studio) -> None:
    recipe = {"method": "toy", "base_model": "starter", "dataset": "starter"}
    made = studio.api.post("/experiments", json={"name": "toy", "recipe": recipe})
    asked = {
        "experiment_id": made.raise_for_status().json()["id"],
        "space": {"weighting.loss_weight": {"values": [0.5, 2.0]}},
    }
    sweep = studio.api.post("/sweeps", json=asked).raise_for_status().json()
    studio.api.post(f"/sweeps/{sweep['id']}/stop").raise_for_status()

    assert (sweep["metric"], sweep["direction"]) == ("eval_confidence", "maximise")


def test_the_reference_describes_it(checkout: Path) -> None:
    run_command(checkout, "docs")

    settings = (checkout / "docs" / "knobs.md").read_text(encoding="utf-8")
    assert "## Toy training (`toy`)" in settings
    assert "| Loss weight | `weighting.loss_weight` | `1.0` |" in settings


def test_a_recipe_in_yaml_trains_with_it(studio: Studio, checkout: Path) -> None:
    file = checkout / "play.yaml"
    file.write_text(RECIPE, encoding="utf-8")
    printed = run_command(checkout, "runs", "submit", str(file), "--json", STUDIO_URL=studio.url)
    number: int = json.loads(printed)["id"]
    wait_until(lambda: get_run(studio, number)["finished_at"] is not None)

    run: dict[str, Any] = get_run(studio, number)
    assert run["status"] == "succeeded", run["error"]
    assert run["recipe"]["weighting"] == {"loss_weight": 0.5}
    assert 0 < run["metrics"]["eval_confidence"] <= run["metrics"]["best_eval_confidence"] < 1
    assert "Validation confidence" in open_page(studio, f"/runs/{number}/charts").text
    assert "method: toy" in open_page(studio, f"/runs/{number}/details").text
