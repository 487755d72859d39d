"""The starter model learns to search, from its own questions and answers."""

from pathlib import Path

import pytest

from studio.protocols.events import Finished
from tests.training import starter_pairs, tiny

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_embeddings_find_answers(starter_model: Path, tmp_path: Path) -> None:
    """In 40 steps of 32 pairs; 150 questions search among all answers."""
    run = tiny.train(
        tmp_path / "run",
        starter_model,
        starter_pairs.read(),
        method="embed",
        samples__max_new_tokens=1,
        optimisation__max_steps=40,
        optimisation__per_device_train_batch_size=32,
        optimisation__learning_rate=5e-4,
        data__validation_share=0.1,
        data__max_length=256,
        evaluation__eval_steps=0.5,
    )
    found = tiny.metric_values(run, "eval_mrr_at_10")

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert found[0] < 0.3
    assert found[-1] >= 0.6
