"""A recipe's script trains the same as the studio, with TRL alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from studio.methods import RECIPE_ADAPTER
from studio.protocols.run_dir import RunDir
from studio.recipe import yaml
from studio.services.recipe_scripts import scripts
from tests.training import tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

STEPS = 20
MULTI_TURN = [
    {
        "messages": [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": f"Count to {number}."},
            {"role": "assistant", "content": "No.", "weight": number % 2},
            {"role": "user", "content": "Please."},
            {"role": "assistant", "content": " ".join(map(str, range(number))) + " "},
        ]
    }
    for number in range(1, 30)
]
TEXTS = [{"text": f"The number {number} comes before {number + 1}."} for number in range(40)]


def run_script(run: RunDir, model: Path, folder: Path) -> list[float]:
    """Run the script of a run's recipe in a process of its own, and return its losses."""
    folder.mkdir()
    recipe = RECIPE_ADAPTER.validate_python(yaml.load(run.recipe.read_text(encoding="utf-8")))
    path = folder / "train.py"
    path.write_text(scripts.build(recipe, str(model)), encoding="utf-8")
    rows = run.root / "train.jsonl"
    output = folder / "out"
    command = [sys.executable, str(path), str(rows), "--output", str(output)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    history = json.loads((output / "trainer_state.json").read_text(encoding="utf-8"))["log_history"]
    return [entry["loss"] for entry in history if "loss" in entry]


@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (None, {}),
        (None, {**tiny.LORA, "optimisation__gradient_accumulation_steps": 2}),
        (MULTI_TURN, {"optimisation__train_sampling_strategy": "random"}),
        (MULTI_TURN, {"data__chat_template": "chatml", "optimisation__loss_type": "dft"}),
        (MULTI_TURN, {"data__chat_template": "plain", "data__max_length": 90}),
        (TEXTS, {"method": "cpt", "data__packing": False}),
    ],
    ids=["full", "lora", "several turns", "chatml", "plain", "texts"],
)
def test_script_has_losses_of_run(
    tmp_path: Path, model: Path, rows: list[dict[str, Any]] | None, settings: dict[str, Any]
) -> None:
    changes = {"optimisation__max_steps": STEPS, **settings}
    run = tiny.train(tmp_path / "run", model, rows, **changes)

    losses = run_script(run, model, tmp_path / "script")

    assert len(losses) == STEPS
    assert losses == pytest.approx(tiny.metric_values(run, "loss"), abs=1e-6)


def test_script_computes_in_bfloat16_mixed(tmp_path: Path, model: Path) -> None:
    run = tiny.train(tmp_path / "run", model, optimisation__max_steps=STEPS, precision="bf16")

    losses = run_script(run, model, tmp_path / "script")

    assert losses == pytest.approx(tiny.metric_values(run, "loss"), abs=2e-2)
