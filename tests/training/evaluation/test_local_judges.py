"""Judges that are models of the studio: a reward model compares scores, a chat model is asked."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from studio.protocols.inference_service import GenerationRequest
from studio.protocols.judging import JudgementJob, ModelJudge, Pair, RewardJudge
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.runner.tasks.judge import judge
from tests.training import tiny
from tests.training.runs.test_preferences import PAIRS

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

runs = tiny.Runs(PAIRS, method="reward", samples__max_new_tokens=1)
ANSWERS = [
    Pair(position=0, prompt="What is 1 + 1?", reference="", base="1 + 1 = 3", tuned="1 + 1 = 2"),
    Pair(position=1, prompt="What is 2 + 2?", reference="4", base="2 + 2 = 4", tuned="9"),
    Pair(position=2, prompt="What is 2 + 3?", reference="", base="5", tuned="5"),
]


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    root = tmp_path_factory.mktemp("reward")
    model = tiny.write_model(root / "model", tiny.llama())
    return runs.train(root / "run", model, {"optimisation__max_steps": 8})


def ask(folder: Path, by: ModelJudge | RewardJudge) -> list[dict[str, Any]]:
    task = TaskDir(folder)
    task.files.mkdir(exist_ok=True)
    job = JudgementJob(about="run 1", judgement=1, judge=by, pairs=ANSWERS)
    result = judge(task, job.model_dump(mode="json"), lambda _phase, _share: None)
    pairs: list[dict[str, Any]] = result["pairs"]
    return pairs


def blank(model: Path, **changes: Any) -> GenerationRequest:  # noqa: ANN401 -- fields
    return GenerationRequest(model=str(model), ids=[], stops=[], **changes)


def test_reward_model_prefers_what_it_scores_higher(reward: RunDir, tmp_path: Path) -> None:
    """The scores are those that plain transformers gives for the same conversation."""
    by = RewardJudge(model=blank(reward.artifacts, gives_scores=True), max_length=128)
    results = ask(tmp_path, by)
    model = AutoModelForSequenceClassification.from_pretrained(reward.artifacts).eval()
    tokenizer = AutoTokenizer.from_pretrained(reward.artifacts)

    def score(prompt: str, answer: str) -> float:
        turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
        ids = tokenizer.apply_chat_template(turns, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            return float(model(**ids).logits[0, 0])

    for pair, result in zip(ANSWERS[:2], results, strict=False):
        base, tuned = (score(pair.prompt, answer) for answer in (pair.base, pair.tuned))
        assert result["base_first_reply"] == f"base {base:.4g}, tuned {tuned:.4g}"
        assert result["base_first"] == ("A" if base > tuned else "B")
        assert result["tuned_first"] == ("B" if base > tuned else "A")
    assert (results[2]["base_first"], results[2]["tuned_first"]) == ("tie", "tie")


@pytest.mark.parametrize("context", [2048, 128])
def test_chat_model_is_asked_in_both_orders(context: int, tmp_path: Path) -> None:
    """A tiny model keeps to no form, and its words do not count; nor do too long questions."""
    config = tiny.llama()
    config.max_position_embeddings = context
    results = ask(tmp_path, ModelJudge(model=blank(tiny.write_model(tmp_path / "model", config))))

    assert [(one["base_first"], one["tuned_first"]) for one in results[:2]] == [("", "")] * 2
    is_too_long = [one["base_first_reply"].startswith("The prompt has ") for one in results]
    assert is_too_long == [context == 128, context == 128, False]
    assert results[2]["base_first"] == "tie"
