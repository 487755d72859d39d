"""What reinforcement learning adds to a model that was taught to answer, with three seeds.

The starter model is fine-tuned for 60 steps, and then learns from the scores of its own answers:
half for the exact answer of the data, half for how similar an answer is. `python -m
tests.bench.reinforcement [VARIANT …]` prints the mean score of answers to 128 held-out prompts
before and after 40 steps of 64 answers; about a minute a seed on two quiet cores.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from studio import starter
from studio.methods import rollouts
from studio.protocols.events import Finished
from studio.protocols.run_dir import RunDir
from tests.bench.measurement import Measurement
from tests.training import tiny

SEEDS = (1, 2, 3)
GSPO: Mapping[str, Any] = {
    "policy__loss_type": "grpo",
    "policy__importance_level": "sequence",
    "policy__epsilon": 3e-4,
    "policy__epsilon_high": 4e-4,
    "rollouts__steps_per_generation": 4,
}
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "dapo": {},
    "dr_grpo": {"policy__loss_type": "dr_grpo", "policy__scale_rewards": "none"},
    "gspo": GSPO,
    "rloo": {"method": "rloo", "rollouts__answers_per_prompt": 8, "policy__beta": 0.0},
    "adapter": {"adapter__kind": "lora", "optimisation__learning_rate": 2e-3},
    "bf16": {"precision": "bf16"},
}
WARM: Mapping[str, Any] = {
    "optimisation__max_steps": 60,
    "optimisation__per_device_train_batch_size": 32,
    "optimisation__learning_rate": 1e-3,
    "data__max_length": 256,
}
LESSON: Mapping[str, Any] = {
    "method": "grpo",
    "rollouts__max_new_tokens": 32,
    "rollouts__validation_prompts": 128,
    "optimisation__learning_rate": 2e-4,
    "optimisation__lr_scheduler_type": "constant",
    "optimisation__max_steps": 40,
    "optimisation__per_device_train_batch_size": 8,
    "optimisation__gradient_accumulation_steps": 1,
    "evaluation__eval_steps": 40,
}


def measure(names: tuple[str, ...]) -> Iterator[Measurement]:
    with TemporaryDirectory() as scratch:
        model, rows = _warm_up(Path(scratch))
        for name in names or tuple(VARIANTS):
            gains = []
            for seed in SEEDS:
                run = _train(Path(scratch) / f"{name}-{seed}", model, rows, name, seed)
                before, *_, after = tiny.metric_values(run, "eval_reward")
                gains.append(after - before)
                yield Measurement(f"{name}, seed {seed}: before", before, "")
                yield Measurement(f"{name}, seed {seed}: after", after, "")
            yield Measurement(f"{name}: least gain of {len(SEEDS)} seeds", min(gains), "")


def _warm_up(scratch: Path) -> tuple[Path, list[dict[str, Any]]]:
    """Return a model that has learned to answer, and the rows it learned from."""
    folder = scratch / "starter"
    folder.mkdir()
    starter.write_model(folder)
    starter.write_rows(scratch)
    lines = (scratch / starter.SPLITS[0]).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    run = tiny.train(scratch / "warm", folder, rows, **WARM)
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return run.artifacts, rows


def _train(folder: Path, model: Path, rows: list[dict[str, Any]], name: str, seed: int) -> RunDir:
    grader = rollouts.CLOSE_GRADER
    settings = {**LESSON, "reward__grader": grader, "optimisation__seed": seed, **VARIANTS[name]}
    run = tiny.train(folder, model, rows, **settings)
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return run


def main() -> None:
    # Runs speak of their steps; the figures are what is read here.
    figures, devnull = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    with os.fdopen(figures, "w") as out:
        for figure in measure(tuple(sys.argv[1:])):
            out.write(f"{figure}\n")
            out.flush()


if __name__ == "__main__":
    main()
