"""The closed form of memory, held to dry runs of small models of every family, in every mode."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from studio.methods import METHODS, count_sequences
from studio.protocols.run_dir import RunDir
from studio.runner.training_run import load_recipe
from studio.services.estimates import memory
from studio.services.estimates.activation_memory import BatchShape
from studio.services.estimates.memory import MemoryBreakdown
from studio.training.memory import dry_run
from studio.training.models import loader
from studio.weights import model_facts
from studio.weights.family_limits import FAMILY_LAYERS
from tests.training import tiny
from tests.training.memory import tiny_configs
from tests.training.memory.test_dry_run import dry, plan
from tests.training.memory.test_memory import talk

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

_ROWS, _HELD_BACK = 20, 4
LORA = {"precision": "bf16", "adapter__kind": "lora"}
PARTS: dict[str, dict[str, Any]] = {
    "last layer trained": {},
    "norms, too": {"adapter__also_trained": "norms"},
    "output, too": {"adapter__also_trained": "output"},
    "norms alone": {"adapter__also_trained": "norms", "adapter__trained_layers": 0},
    "embeddings alone": {"adapter__also_trained": "embeddings", "adapter__trained_layers": 0},
}
NEXT_TO: dict[str, dict[str, Any]] = {
    "": {},
    " in float32": {"precision": "fp32"},
    ", last layer": {"adapter__last_layers": 1},
    ", 16 bits": {"adapter__base_dtype": "bfloat16"},
}
OTHER_ADAPTERS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "16 bits": {"precision": "bf16", "adapter__base_dtype": "bfloat16"},
    "attention": {"precision": "fp32", "adapter__target_modules": "attention"},
    "mlp": {"precision": "bf16", "adapter__target_modules": "mlp"},
    "last layer": {"precision": "fp32", "adapter__last_layers": 1},
    "checkpointed": {"precision": "bf16", "optimisation__activation_checkpointing": True},
}
WAYS: dict[str, dict[str, Any]] = {
    "rounded": {"precision": "fp32_bf16_matmul"},
    "rounded_lora": LORA | {"precision": "fp32_bf16_matmul"},
    "kahan": {"precision": "bf16_kahan"},
    "lora": LORA,
    "lion": {"precision": "bf16", "optimisation__optim": "lion_32bit"},
    **{
        f"eager, {name}": changes | {"model__attention": "eager"}
        for name, changes in {
            "fp32": {"precision": "fp32"},
            "bf16": {"precision": "bf16"},
            "lora": LORA,
            "rounded": {"precision": "fp32_bf16_matmul"},
            "lora in float32": LORA | {"precision": "fp32"},
        }.items()
    },
    "muon": {"precision": "bf16", "optimisation__optim": "muon"},
    "muon in float32": {"precision": "fp32", "optimisation__optim": "muon"},
    "muon on the last layer": {
        "precision": "fp32",
        "optimisation__optim": "muon",
        "adapter__trained_layers": 1,
    },
    "dora": LORA | {"adapter__variant": "dora"},
    "dora in float32": LORA | {"adapter__variant": "dora", "precision": "fp32"},
    "attention": LORA | {"adapter__target_modules": "attention"},
    "attention in float32": LORA | {"adapter__target_modules": "attention", "precision": "fp32"},
    "mlp": LORA | {"adapter__target_modules": "mlp"},
    "mlp in float32": LORA | {"adapter__target_modules": "mlp", "precision": "fp32"},
    "named": LORA | {"adapter__module_names": "q_proj, v_proj"},
    "named output": LORA | {"adapter__module_names": "down_proj", "precision": "fp32"},
    "last layer": LORA | {"adapter__last_layers": 1},
    "last layer in float32": LORA | {"adapter__last_layers": 1, "precision": "fp32"},
    "last layer, checkpointed": LORA
    | {"adapter__last_layers": 1, "optimisation__activation_checkpointing": True},
    "dora on attention": LORA
    | {"adapter__variant": "dora", "adapter__target_modules": "attention"},
    **{
        f"{part}, {mode}": {"precision": mode, "adapter__trained_layers": 1} | changes
        for mode in ("fp32", "bf16", "bf16_dual")
        for part, changes in PARTS.items()
    },
    "embeddings alone, checkpointed": PARTS["embeddings alone"]
    | {"precision": "bf16", "optimisation__activation_checkpointing": True},
    **{
        f"adapter and {extra}{name}": LORA | {"adapter__extra_modules": extra} | changes
        for extra in ("norms", "output", "embeddings")
        for name, changes in NEXT_TO.items()
    },
    "new tokens": {"precision": "fp32", "model__new_tokens": "<tool>, </tool>"},
    **{
        f"adapter and new tokens{name}": LORA | {"model__new_tokens": "<tool>, </tool>"} | changes
        for name, changes in NEXT_TO.items()
    },
    "adapter, output and new tokens": LORA
    | {"model__new_tokens": "<tool>", "adapter__extra_modules": "output"},
    "adapter and longer context": LORA | {"model__rope_type": "yarn"},
    **{
        f"{kind}, {name}": {"adapter__kind": kind, **changes}
        for kind in ("oft", "ia3")
        for name, changes in OTHER_ADAPTERS.items()
    },
    "eva": LORA | {"adapter__variant": "eva"},
    "pissa": LORA | {"adapter__variant": "pissa"},
    "checkpointed": {
        "precision": "fp32_bf16_matmul",
        "optimisation__activation_checkpointing": True,
    },
    "a batch of 8": {"precision": "bf16", "optimisation__per_device_train_batch_size": 8},
}
REAL: dict[str, dict[str, Any]] = {
    "fp8": {"precision": "fp8"},
    "int8": LORA | {"adapter__base_dtype": "int8"},
    "int8, attention": LORA
    | {"adapter__base_dtype": "int8", "adapter__target_modules": "attention"},
    "nf4, mlp": LORA | {"adapter__base_dtype": "nf4", "adapter__target_modules": "mlp"},
    "nf4": LORA | {"adapter__base_dtype": "nf4"},
    "8-bit adamw": {"precision": "bf16", "optimisation__optim": "adamw_8bit"},
    "8-bit adamw on an adapter": LORA | {"optimisation__optim": "adamw_8bit", "adapter__r": 64},
    "dora on nf4": LORA | {"adapter__base_dtype": "nf4", "adapter__variant": "dora"},
    "nf4 and embeddings in float32": LORA
    | {
        "adapter__base_dtype": "nf4",
        "adapter__extra_modules": "embeddings",
        "precision": "fp32",
    },
    "nf4 and output": LORA | {"adapter__base_dtype": "nf4", "adapter__extra_modules": "output"},
    "eva on nf4": LORA | {"adapter__base_dtype": "nf4", "adapter__variant": "eva"},
    "loftq on nf4": LORA | {"adapter__base_dtype": "nf4", "adapter__variant": "loftq"},
    "nf4 and new tokens": LORA
    | {"adapter__base_dtype": "nf4", "model__new_tokens": "<tool>, </tool>"},
    "nf4 in float32": LORA | {"adapter__base_dtype": "nf4", "precision": "fp32"},
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("closed"), "llama")


@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.smoke] * (name == "llama")) for name in FAMILY_LAYERS],
)
def test_formula_matches_dry_run_for_every_family(family: str, tmp_path: Path) -> None:
    closed, exact = both(write(tmp_path, family), tmp_path, {"precision": "fp32"})

    assert closed.activations == pytest.approx(exact.activations, rel=0.1)
    assert closed.total == pytest.approx(exact.total, rel=0.1)


@pytest.mark.parametrize("way", WAYS)
def test_formula_matches_dry_run_for_every_mode(llama: Path, tmp_path: Path, way: str) -> None:
    closed, exact = both(llama, tmp_path, WAYS[way])

    assert closed.total == pytest.approx(exact.total, rel=0.1)


def said(number: int, method: str) -> dict[str, Any]:
    """Return a row for a method that compares two answers, or gives scores."""
    prompt, answer = talk(number)["messages"]
    longer = {"role": "assistant", "content": "No. " * (30 + number)}
    if method == "classify":
        return {"messages": [prompt, {"role": "assistant", "content": "ab"[number % 2]}]}
    if method == "regress":
        turns = [prompt, {"role": "assistant", "content": str(number)}]
        return {"messages": turns, "numbers": {"number": float(number)}}
    if method == "prm":
        steps = [answer["content"], longer["content"]]
        return {"messages": [prompt], "steps": steps, "correct": [number % 2 == 0, True]}
    if method == "tokens":
        words = f"{prompt['content']} {longer['content']}".split()
        return {"text": " ".join(words), "words": words, "tags": ["B-x", *["O"] * (len(words) - 1)]}
    return {"messages": [prompt], "chosen": [answer], "rejected": [longer]}


@pytest.mark.parametrize(
    "knobs",
    [
        LORA,
        LORA | {"precision": "fp32"},
        {"precision": "fp32"},
        {"precision": "bf16"},
        {"precision": "bf16", "optimisation__activation_checkpointing": True},
    ],
    ids=["lora", "lora in float32", "full", "full in 16 bits", "checkpointed"],
)
@pytest.mark.parametrize("method", ["dpo", "reward", "classify", "regress", "prm", "tokens"])
def test_formula_matches_dry_run_of_pairs_and_heads(
    llama: Path, tmp_path: Path, method: str, knobs: dict[str, Any]
) -> None:
    closed, exact = both(llama, tmp_path, knobs, method)

    assert closed.weights == pytest.approx(exact.weights, rel=0.01)
    assert closed.total == pytest.approx(exact.total, rel=0.1)


@pytest.mark.parametrize("way", REAL)
def test_formula_matches_real_step_where_dry_run_is_impossible(
    llama: Path, tmp_path: Path, way: str
) -> None:
    run = tiny.write_run(tmp_path / "run", llama, **REAL[way], numerics__health=False)
    tiny.write_rows(run.root / "train.jsonl", [talk(i) for i in range(_ROWS)])
    step = plan(run, loader.load_model)
    told = {"longest_example": step.train.length, "longest_answer": step.train.answer_length}
    closed, exact = worked_out(llama, run, told, dry_run.count_memory(step))

    assert closed.weights == pytest.approx(exact.weights, rel=0.01)
    assert closed.total == pytest.approx(exact.total, rel=0.1)


def write(folder: Path, family: str) -> Path:
    """Write a model of a few million parameters."""
    config = tiny_configs.config(family, words=4096, hidden=128, inner=320, layers=2)
    return tiny.write_model(folder / "model", config)


def both(
    model: Path, folder: Path, knobs: dict[str, Any], method: str = "sft"
) -> tuple[MemoryBreakdown, MemoryBreakdown]:
    """Return what the closed form says of a run, and what its dry run does."""
    if METHODS[method].recipe.outputs not in {"text", "rewrite"}:
        knobs = knobs | {"samples__max_new_tokens": 1}
    run = tiny.write_run(folder / "run", model, **knobs, method=method, numerics__health=False)
    rows = [talk(i) if method == "sft" else said(i, method) for i in range(_ROWS)]
    tiny.write_rows(run.root / "train.jsonl", rows)
    told = dry(folder, run) if method == "sft" else dry_apart(folder, run)
    return worked_out(model, run, told, told["at_peak"])


def dry_apart(folder: Path, run: RunDir) -> dict[str, Any]:
    """Make a dry run as a task does: several models with a head in one process crash torch."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(dry, folder, run).result()


def worked_out(
    model: Path, run: RunDir, told: dict[str, Any], parts: dict[str, int]
) -> tuple[MemoryBreakdown, MemoryBreakdown]:
    recipe, known = load_recipe(run), model_facts.read(model)
    batch = count_sequences(recipe, recipe.optimisation.per_device_train_batch_size)
    length = told["longest_example"]
    rows = _ROWS - _HELD_BACK
    load = BatchShape(batch, length, told["longest_answer"], rows, length, _HELD_BACK)
    closed = memory.estimate(recipe, known, load, on_gpu=False)
    assert closed is not None
    return closed, memory.from_dry_run(recipe, known, load, parts, on_gpu=False)
