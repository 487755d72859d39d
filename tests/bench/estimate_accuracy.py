"""Estimates against what runs measure: memory as submitted, time after one run of the kind.

Each configuration trains twice, in a process of its own as for users: a run that the studio
knows nothing of before, then one with twice the batch. Other work on the machine slows both runs,
so times that look odd are worth another try; memory does not depend on it. It is also counted by a
dry run, which no estimate here goes by.
"""

import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Engine
from transformers import LlamaConfig, PreTrainedConfig
from transformers.utils import logging as upstream_logging

from studio.db.session import unit_of_work
from studio.db.states import RunStatus
from studio.db.tables import Dataset, DatasetVersion, Run
from studio.methods import RECIPE_ADAPTER
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskSpec
from studio.recipe.dotted_keys import merge
from studio.services import experiments
from studio.services.datasets import versions
from studio.services.estimates import estimates, measurements, memory
from studio.services.models import models
from studio.services.operations import home
from studio.services.runs import attempts, runs, states
from studio.services.tasks import tasks
from studio.settings import Settings
from studio.worker.processes import process, run_dir_setup
from tests.bench.measurement import Measurement
from tests.training import tiny
from tests.training.memory.tiny_configs import config

LENGTH = 192
"""Tokens of every example: what is longer is cut there."""
ROWS = 60
BATCHES = (4, 8)
STEPS = (12, 16)

SIZES: dict[str, tuple[int, int, int, int, int]] = {
    "2M": (2048, 192, 512, 3, 3),
    "16M": (8192, 384, 1024, 6, 6),
    "57M": (16384, 640, 1728, 8, 10),
}
"""Of each Llama: words, width, inner width, layers, heads."""
FAMILIES = {"NeoX": "gpt_neox", "Qwen3": "qwen3"}
"""Models of other families, as large as `16M`."""

WAYS = (("fp32", "full"), ("bf16", "full"), ("bf16_pure", "full"), ("bf16", "lora"))

CHECKPOINTED = {"optimisation": {"activation_checkpointing": True}}
SPECIAL: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("2M", "checkpointed", CHECKPOINTED),
    ("16M", "checkpointed", CHECKPOINTED),
    ("16M", "checkpointed, LoRA", CHECKPOINTED | {"adapter": {"kind": "lora"}}),
    ("16M", "packed", {"data": {"packing": True}}),
    ("16M", "validated by 32", {"evaluation": {"per_device_eval_batch_size": 32}}),
    ("NeoX", "full", {}),
    ("NeoX", "checkpointed", CHECKPOINTED),
    ("Qwen3", "checkpointed", CHECKPOINTED),
)
"""Model, name and changes of the configurations that the formula was not fitted to, in fp32."""


@dataclass(frozen=True, slots=True)
class Result:
    """One run: what was estimated over what was measured, less one."""

    name: str
    first_memory: float
    """Of the short run."""
    memory: float
    plain: float
    """Without what earlier runs have taught."""
    dry: float
    """By a dry run of the longer."""
    seconds: float
    factor: float


def measure() -> list[Measurement]:
    """Train each configuration twice. Takes half an hour on two cores."""
    with TemporaryDirectory() as scratch:
        fitted, special = _results(Settings(home=Path(scratch) / "home"))
    each = [
        Measurement(f"{one.name}: {what}", 100 * error, "%")
        for one in (*fitted, *special)
        for what, error in (
            ("memory", one.memory),
            ("never corrected", one.plain),
            ("dry run", one.dry),
            ("time", one.seconds),
        )
    ]
    return [*each, *_summed(fitted, ""), *_summed(special, ", not fitted to")]


def _summed(results: Sequence[Result], which: str) -> Iterator[Measurement]:
    for what, errors in (
        ("memory error", [one.memory for one in results]),
        ("memory error, never corrected", [one.plain for one in results]),
        ("memory error, dry run", [one.dry for one in results]),
        ("time error after one run", [one.seconds for one in results]),
    ):
        sizes = [abs(each) for each in errors]
        for how, pick in (("median", statistics.median), ("worst", max)):
            yield Measurement(f"{what}{which}, {how} of {len(sizes)}", 100 * pick(sizes), "%")


def main() -> None:
    for figure in measure():
        sys.stdout.write(f"{figure}\n")


def _results(settings: Settings) -> tuple[list[Result], list[Result]]:
    """Return what came of the configurations that the formula was fitted to, and of the others."""
    upstream_logging.disable_progress_bar()
    engine = home.open_home(settings)
    _add_rows(engine, settings)
    for size, numbers in SIZES.items():
        _add_model(engine, settings, size, _llama(numbers))
    for name, family in FAMILIES.items():
        words, width, inner, layers, _heads = SIZES["16M"]
        _add_model(engine, settings, name, config(family, words, width, inner, layers))
    fitted = [
        _pair(engine, settings, f"{size} {precision} {adapter}", size, _way(precision, adapter))
        for size in SIZES
        for precision, adapter in WAYS
    ]
    special = [
        _pair(engine, settings, f"{model} {name}", model, merge(_way("fp32", "full"), changes))
        for model, name, changes in SPECIAL
    ]
    engine.dispose()
    return fitted, special


def _way(precision: str, adapter: str) -> dict[str, Any]:
    return {"precision": precision, "adapter": {"kind": adapter}}


def _pair(
    engine: Engine, settings: Settings, name: str, model: str, changes: dict[str, Any]
) -> Result:
    recipe = changes | {"base_model": model}
    pairs = zip(BATCHES, STEPS, strict=True)
    first, second = (_train(engine, settings, recipe, *pair) for pair in pairs)
    result = _result(name, first, second, _dry_run(engine, settings, second.run))
    sys.stderr.write(f"{result}\n")
    return result


def _result(
    name: str, first: estimates.EstimateError, second: estimates.EstimateError, dry: float
) -> Result:
    assert first.memory is not None
    assert second.memory is not None
    assert second.seconds is not None
    factor = second.run.estimate["memory"]["factor"]
    plain = (1 + second.memory) / factor - 1
    return Result(name, first.memory, second.memory, plain, dry, second.seconds, factor)


def _train(
    engine: Engine, settings: Settings, recipe: dict[str, Any], batch: int, steps: int
) -> estimates.EstimateError:
    with unit_of_work(engine) as db:
        whole = RECIPE_ADAPTER.validate_python(merge(_rest(batch, steps), recipe))
        run = runs.submit(db, experiments.create(db, "bench", whole))
        folder = RunDir(settings.runs / str(run.id))
        states.move(db, run, RunStatus.STARTING)
        run.claimed_at = datetime.now(UTC)
        run_dir_setup.write_run_dir(db, run, folder, settings)
        run_id = run.id
    started = process.start(folder)
    assert started.child is not None
    ended = started.child.wait()
    with unit_of_work(engine) as db:
        run = db.get_one(Run, run_id)
        assert ended == 0, folder.log.read_text()
        attempts.apply_events(db, run, *folder.events.read())
        assert run.status is RunStatus.SUCCEEDED, folder.log.read_text()
        return estimates.measure_error(run)


def _dry_run(engine: Engine, settings: Settings, run: Run) -> float:
    """Go through a run's step without numbers; only now, for runs are estimated without it."""
    with unit_of_work(engine) as db:
        chore = measurements.enqueue_dry_run(db, run.recipe, settings)
        folder = tasks.task_dir(settings.tasks, chore)
        folder.root.mkdir(parents=True)
        spec = TaskSpec(kind=chore.kind, params=chore.params)
        folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
        chore_id = chore.id or 0
    subprocess.run(
        [sys.executable, "-m", "studio.runner.work_main", "task", str(folder.root)], check=True
    )
    with unit_of_work(engine) as db:
        tasks.apply_events(tasks.get(db, chore_id), *folder.events.read(), folder)
        found = estimates.estimate_recipe(db, run.recipe).memory
    assert found is not None
    assert found.is_exact
    return found.total / (memory.measured_peak(run) or 0) - 1


def _rest(batch: int, steps: int) -> dict[str, Any]:
    return {
        "dataset": "numbers",
        "optimisation": {"per_device_train_batch_size": batch, "max_steps": steps},
        "evaluation": {"per_device_eval_batch_size": 4, "eval_steps": float(steps)},
        "data": {"max_length": LENGTH},
        "samples": {"prompts": 1, "max_new_tokens": 4},
    }


def _llama(numbers: tuple[int, int, int, int, int]) -> PreTrainedConfig:
    words, width, inner, layers, heads = numbers
    return LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=512,
    )


def _add_model(engine: Engine, settings: Settings, name: str, config: PreTrainedConfig) -> None:
    folder = tiny.write_model(settings.models / name, config)
    with unit_of_work(engine) as db:
        models.add(db, name, str(folder), kind="folder")


def _add_rows(engine: Engine, settings: Settings) -> None:
    """Add rows that are all longer than an example may be."""
    texts = [" ".join(map(str, range(number, number + 200))) for number in range(ROWS)]
    rows = [
        {
            "messages": [
                {"role": "user", "content": f"Count from {number}."},
                {"role": "assistant", "content": text},
            ]
        }
        for number, text in enumerate(texts)
    ]
    with unit_of_work(engine) as db:
        data = Dataset(
            name="numbers",
            filename="numbers.jsonl",
            format="jsonl",
            bytes=1,
            sha256="0" * 64,
            version=1,
        )
        db.add(data)
        db.flush()
        version = DatasetVersion(
            dataset_id=data.id or 0, number=1, kind="conversation", sha256="0" * 64, train_rows=ROWS
        )
        db.add(version)
        folder = versions.row_files(settings.datasets, version)[0].parent
    folder.mkdir(parents=True)
    tiny.write_rows(folder / "train.jsonl", rows)


if __name__ == "__main__":
    main()
