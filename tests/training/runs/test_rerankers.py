"""Rerankers: what models learn of a query with a text, and how they rank."""

import json
from base64 import b64decode
from functools import partial
from itertools import product
from math import exp, log, log2
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from tokenizers import processors
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from studio import hardware
from studio.methods.rerank import METHOD, RerankRecipe
from studio.methods.rerank.texts import tokenise
from studio.methods.rerank.trainer import RelevanceTrainer, build, choose_head, rank_texts
from studio.protocols.events import Failed, Finished
from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.recipe.exports import ExportSpec
from studio.recipe.precision import PRECISIONS
from studio.runner.execution import execute_export, execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.text_values import send_values
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training.data.rows import to_training_row
from studio.training.data.text_pairs import fill_negatives, tokenise_pairs
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs.test_embeddings import SCORED
from tests.training.runs.test_encoders import write_encoder
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

WORDS = ("plus", "is", "What", "1", "2", "3", "4", "5", "6", "7", "8", "9")
ROWS: list[Row] = [
    {
        "anchor": f"{one} {two}",
        "positive": f"{word} is 1.",
        "negatives": [f"{word} is 2.", f"{word} is 3."],
    }
    for one, two, word in product(WORDS[:5], WORDS[5:9], WORDS[:3])
]
LEARNS: Changes = {
    "optimisation__max_steps": 60,
    "optimisation__learning_rate": 3e-3,
    "optimisation__per_device_train_batch_size": 12,
    "reranking__negatives": 2,
}
runs = tiny.Runs(ROWS, method="rerank", samples__max_new_tokens=1)
write_run, train = runs.write, runs.train


def built(run: RunDir) -> RelevanceTrainer:
    """Build the trainer of a run."""
    recipe = load_recipe(run)
    assert isinstance(recipe, RerankRecipe)
    job = TrainingJob.prepare(
        recipe,
        run,
        lambda _phase: None,
        tokenise=tokenise,
        choose_head=choose_head,
        kinds=METHOD.trainable_kinds,
    )
    return build(recipe, job)


def best(run: RunDir, key: str = METHOD.objective.key) -> float:
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return max(tiny.metric_values(run, key))


@pytest.mark.parametrize("changes", [{}, LORA], ids=["full", "lora"])
def test_model_learns_which_text_matches(changes: Changes, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | changes)

    assert best(run) > 0.95
    assert best(run, "eval_mrr_at_10") > 0.95
    assert best(run, "eval_accuracy") > 0.9


@pytest.mark.parametrize("family", ["bert", "roberta", "modernbert", "deberta-v2"])
def test_encoder_learns_which_text_matches(family: str, tmp_path: Path) -> None:
    base = write_encoder(tmp_path / "model", family)
    run = train(tmp_path / "run", base, LEARNS | {"optimisation__max_steps": 120})

    assert best(run) > 0.9


MATCHING: list[Row] = [
    {"anchor": f"{before} {word}", "positive": f"{after} {word}."}
    for before, word, after in product(WORDS[:3], WORDS[3:7], WORDS[:3])
]
"""What matches is said by both texts together: they name the same number."""


def test_both_texts_are_read(model: Path, tmp_path: Path) -> None:
    settings: Changes = {
        "optimisation__max_steps": 300,
        "optimisation__learning_rate": 1e-3,
        "optimisation__per_device_train_batch_size": 16,
        "optimisation__train_sampling_strategy": "random",
        "reranking__head_lr_ratio": 1.0,
        "reranking__negatives": 3,
    }
    run = train(tmp_path / "run", model, settings, MATCHING)

    assert best(run) > max(0.85, tiny.metric_values(run, METHOD.objective.key)[0] + 0.2)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_learns_or_is_refused(precision: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | {"precision": precision})
    last, mode = tiny.last_event(run), PRECISIONS[precision]
    if isinstance(last, Failed):
        assert mode.unsupported_reason(hardware.detect()), last
        return

    assert best(run) > tiny.metric_values(run, METHOD.objective.key)[0]


@pytest.mark.parametrize("changes", [{}, LORA | {"precision": "bf16"}], ids=["full", "lora"])
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes, ROWS[:20])
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_loss_is_binary_cross_entropy(weight: float, model: Path, tmp_path: Path) -> None:
    trainer = built(write_run(tmp_path / "run", model, {"reranking__positive_weight": weight}))
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(6)])
    logits = trainer.scores(trainer.model, batch).squeeze(-1).tolist()
    losses = [
        weight * log(1 + exp(-logit)) if target else log(1 + exp(logit))
        for logit, target in zip(logits, batch["target"].tolist(), strict=True)
    ]

    assert set(batch["target"].tolist()) == {0.0, 1.0}
    loss = trainer.compute_loss(trainer.model, batch)
    assert loss.item() == pytest.approx(sum(losses) / 6, rel=1e-5)


def test_scores_are_learned_between_0_and_1(model: Path, tmp_path: Path) -> None:
    trainer = built(write_run(tmp_path / "run", model, {}, SCORED))
    targets = {float(row["target"]) for row in trainer.train_dataset}

    assert (min(targets), max(targets)) == (0.0, 1.0)
    assert len(targets) == 10
    assert all(len(row.pair) == 2 for row in [to_training_row(SCORED[0], 1, "training")])


def row_of(anchor: str, positive: str, *negatives: str) -> Row:
    return {"anchor": anchor, "positive": positive, "negatives": [*negatives]}


def test_texts_of_other_rows_do_not_match() -> None:
    """No text that matches an equal query is among them; the same rows get the same."""
    rows = [
        to_training_row(row, number, "training")
        for number, row in enumerate(
            [
                row_of("a", "A", "X"),
                row_of("a", "B"),
                row_of("c", "C"),
                row_of("d", "D", "X", "Y", "Z"),
            ],
            1,
        )
    ]
    filled = fill_negatives(rows, 2)
    negatives = [row.pair[2:] for row in filled]

    assert filled == fill_negatives(rows, 2)
    assert [len(own) for own in negatives[2:]] == [2, 3]
    assert negatives[0][0] == "X"
    assert {"A", "B"} & {*negatives[0], *negatives[1]} == set()
    assert tuple(negatives[3]) == ("X", "Y", "Z")
    assert "C" not in negatives[2]


def test_rows_that_all_match_are_refused(model: Path, tmp_path: Path) -> None:
    rows = [{"anchor": f"{place}", "positive": "same"} for place in range(9)]
    failed = tiny.last_event(train(tmp_path / "run", model, {}, rows))

    assert isinstance(failed, Failed)
    assert "match equally well" in failed.message


def test_ranking_by_hand() -> None:
    """Query 1 has its match second; query 2 has it first, of equal scores the worse is first."""
    ranking = rank_texts([0.9, 0.5, 0.1, 0.3, 0.3], [0, 1, 0, 1, 0], [1, 1, 1, 2, 2])

    assert ranking.mrr == pytest.approx(0.5)
    assert ranking.ndcg == pytest.approx(1 / log2(3))
    assert rank_texts([2.0, 1.0], [1, 0], [1, 1]).ndcg == 1.0


QUERY, TEXTS = "plus 3", ["plus is 1.", "plus is 2.", "What is 1. " * 20]


def relevance(base: Path, run: RunDir) -> Tensor:
    """Return scores by plain transformers, one pair at a time."""
    config = AutoConfig.from_pretrained(run.artifacts)
    loaded = AutoModelForSequenceClassification.from_pretrained(base, config=config)
    if base != run.artifacts:
        loaded = PeftModel.from_pretrained(loaded, run.artifacts)
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    found = []
    for text in TEXTS:
        inputs = reader(QUERY, text, truncation=True, return_tensors="pt")
        if getattr(config, "type_vocab_size", 0) < 2:
            inputs.pop("token_type_ids", None)
        with torch.no_grad():
            found.append(loaded.eval()(**inputs).logits[0].sigmoid())
    return torch.cat(found)


def write_pair_reader(folder: Path) -> Path:
    """Save an encoder whose tokenizer says which tokens belong to the second text, as BERT's."""
    write_encoder(folder, "bert")
    reader = AutoTokenizer.from_pretrained(folder)
    opening, closing = reader.convert_ids_to_tokens([1, 2])
    reader.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{opening} $A {closing}",
        pair=f"{opening} $A {closing} $B:1 {closing}:1",
        special_tokens=[(opening, 1), (closing, 2)],
    )
    reader.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    names = ["input_ids", "token_type_ids", "attention_mask"]
    path.write_text(json.dumps(settings | {"model_input_names": names}), encoding="utf-8")
    return folder


def test_model_is_shown_which_tokens_are_of_the_second_text(tmp_path: Path) -> None:
    trainer = built(write_run(tmp_path / "run", write_pair_reader(tmp_path / "model")))
    batch = trainer.data_collator([trainer.train_dataset[0]])
    seen: list[Tensor] = []

    def watch(_model: object, _args: object, given: dict[str, Tensor]) -> None:
        seen.append(given["token_type_ids"])

    trainer.model.register_forward_pre_hook(watch, with_kwargs=True)
    trainer.compute_loss(trainer.model, batch)

    assert set(batch["types"].flatten().tolist()) == {0, 1}
    assert torch.equal(seen[0], batch["types"])


@pytest.mark.parametrize("family", ["llama", "bert", "bert with types"])
@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_inference_service_scores_as_plain_transformers(
    family: str, adapter: Changes, model: Path, tmp_path: Path
) -> None:
    write = write_pair_reader if "types" in family else partial(write_encoder, family="bert")
    base = model if family == "llama" else write(tmp_path / "base")
    run = train(tmp_path / "run", base, LEARNS | adapter | {"data__max_length": 32})
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    _sizes, ids, types = tokenise_pairs([(QUERY, text) for text in TEXTS], reader, 32)
    asked = GenerationRequest(
        model=str(base if adapter else run.artifacts),
        adapter=str(run.artifacts) if adapter else "",
        ids=[],
        stops=[],
        texts=ids,
        types=types,
        gives_scores=True,
    )
    sent = list[GenerationChunk]()
    with ModelCache().model_for(asked) as (loaded, _tokenizer):
        send_values(asked, loaded, sent.append, lambda: False)
    values = [bytearray(b64decode(one)) for chunk in sent for one in chunk.values]
    scores = torch.cat([torch.frombuffer(one, dtype=torch.float32) for one in values])

    expected = relevance(base if adapter else run.artifacts, run)
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-4)
    assert reader.model_max_length == 32
    assert reader.chat_template is None


@pytest.mark.parametrize("kind", ["full", "merged"])
def test_exported_model_says_how_to_load_it(kind: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | ({} if kind == "full" else LORA))
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind=kind, dtype="float32")
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    assert execute_export(folder.root, StopHandler()) == 0
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    code = card.partition("```python\n")[2].partition("```")[0]
    found: dict[str, float] = {}
    code = code.replace("path/to/this/folder", str(folder.files)).replace("A query", QUERY)
    exec(code.replace("A passage", TEXTS[0]), found)  # noqa: S102 -- our own card

    assert "pipeline_tag: text-ranking\n" in card
    whole = relevance(run.artifacts if kind == "full" else model, run)
    assert found["relevance"] == pytest.approx(float(whole[0]), rel=1e-4)


def test_dry_run_reads_a_batch(model: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", model, LEARNS)
    folder = TaskDir(tmp_path / "task")
    folder.files.mkdir(parents=True)
    recipe = load_recipe(run).model_dump(mode="json")
    params = {"recipe": recipe, "job": run.job.read_text(encoding="utf-8")}

    assert measure(folder, params, lambda _part, _share: None)["train_examples"] == 48 * 3
