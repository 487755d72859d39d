"""The closed form of the memory of embeddings and rerankers, held to dry runs."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from studio.methods import count_sequences
from studio.runner.training_run import load_recipe
from studio.services.estimates import memory
from studio.services.estimates.activation_memory import BatchShape
from studio.weights import model_facts
from tests.training import tiny
from tests.training.memory.test_dry_run import dry
from tests.training.memory.test_encoder_memory_formula import LARGE, make_config, write_model
from tests.training.tiny import Changes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

ROWS = [
    {"anchor": f"{'What is one plus two? ' * 8}{number}", "positive": f"It is {number}. " * 8}
    for number in range(40)
]


@pytest.fixture(scope="module")
def process() -> ProcessPoolExecutor:
    """Start processes that have the packages, for one dry run each.

    Several models with a head in one process crash torch.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(1, context, max_tasks_per_child=1)


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "embed"},
        {"method": "embed", "precision": "bf16", "adapter__kind": "lora"},
        {"method": "embed", "embedding__mini_batch": 4},
        {"method": "rerank"},
    ],
    ids=["full", "lora", "mini-batch", "rerank"],
)
def test_formula_matches_dry_run(
    family: str, changes: Changes, process: ProcessPoolExecutor, tmp_path: Path
) -> None:
    estimated, measured = process.submit(both, family, changes, tmp_path).result()

    assert estimated == pytest.approx(measured, rel=0.1)


def both(family: str, changes: Changes, folder: Path) -> tuple[int, int]:
    """Return the bytes that the closed form says of a run, and those that its dry run does."""
    model = folder / "model"
    if family == "llama":
        AutoModelForCausalLM.from_config(make_config(family, LARGE)).save_pretrained(model)
        tiny.tokenizer().save_pretrained(model)
    else:
        write_model(model, family, LARGE)
    settings: Changes = {
        "samples__max_new_tokens": 1,
        "numerics__health": False,
        "optimisation__per_device_train_batch_size": 8,
        "evaluation__per_device_eval_batch_size": 8,
    }
    run = tiny.write_run(folder / "run", model, ROWS, **settings | changes)
    found, facts = dry(folder, run), model_facts.read(model)
    # Its rows have no negatives.
    recipe = load_recipe(run).with_negatives(0)
    sequences = memory.sequences_at_a_time(recipe, 8)
    length = found["longest_example"]
    shape = BatchShape(sequences, length, 1, found["train_examples"], length, 8)
    closed = memory.estimate(recipe, facts, shape, on_gpu=False)
    assert closed is not None
    exact = memory.from_dry_run(recipe, facts, shape, found["at_peak"], on_gpu=False)
    return closed.total, exact.total


def test_texts_of_a_row_are_counted() -> None:
    hard, plain, cached, reranked = (
        tiny.recipe(samples__max_new_tokens=1, **changes)
        for changes in (
            {"method": "embed", "embedding__negatives": 3},
            {"method": "embed", "embedding__negatives": 0},
            {"method": "embed", "embedding__negatives": 3, "embedding__mini_batch": 4},
            {"method": "rerank"},
        )
    )

    assert [count_sequences(one, 8) for one in (hard, plain, cached, reranked)] == [40, 16, 40, 8]
    assert [count_sequences(hard.with_negatives(most), 8) for most in (0, 1, 9)] == [16, 24, 40]
    assert memory.sequences_at_a_time(cached, 8) == 4
