"""Embeddings: what models learn of pairs, how they find what matches, and how they are saved."""

import json
from base64 import b64decode
from collections.abc import Sequence
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import Tensor
from torch.nn.functional import normalize
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from studio import hardware
from studio.methods.embed import METHOD, EmbedRecipe
from studio.methods.embed.texts import tokenise
from studio.methods.embed.trainer import VectorTrainer, build, choose_head
from studio.protocols.events import Failed, Finished, Started
from studio.protocols.inference_service import GenerationChunk, GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tasks import TaskDir
from studio.recipe.exports import ExportSpec
from studio.recipe.precision import PRECISIONS
from studio.runner.execution import execute_export, execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.text_values import batches, send_values
from studio.runner.tasks.memory_dry_run import measure
from studio.runner.training_run import load_recipe
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from studio.weights.encoders import ENCODERS
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs.test_encoders import write_encoder
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]

ROWS: list[Row] = [
    {"anchor": f"What is {one} plus {two}?", "positive": f"{one} plus {two} is {one + two}."}
    for one, two in product(range(10), repeat=2)
]
HARD: list[Row] = [
    {**row, "negatives": [f"{two} plus {one} is {one + two}."]}
    for row, (one, two) in zip(ROWS, product(range(10), repeat=2), strict=True)
    if one != two
]
TRIPLETS: list[Row] = [
    {**row, "negatives": [ROWS[(7 * place + 13) % len(ROWS)]["positive"]]}
    for place, row in enumerate(ROWS)
]
SCORED: list[Row] = [
    {"anchor": f"{one} plus 1", "positive": f"{two} plus 1", "score": 5.0 - abs(one - two) / 2}
    for one, two in product(range(10), repeat=2)
]
LEARNS: Changes = {
    "optimisation__max_steps": 60,
    "optimisation__learning_rate": 3e-3,
    "optimisation__per_device_train_batch_size": 16,
}
runs = tiny.Runs(ROWS, method="embed", samples__max_new_tokens=1)
write_run, train = runs.write, runs.train


def prepare(run: RunDir) -> TrainingJob:
    return TrainingJob.prepare(
        load_recipe(run),
        run,
        lambda _phase: None,
        tokenise=tokenise,
        choose_head=choose_head,
        kinds=METHOD.trainable_kinds,
    )


def built(run: RunDir) -> VectorTrainer:
    """Build the trainer of a run."""
    recipe = load_recipe(run)
    assert isinstance(recipe, EmbedRecipe)
    return build(recipe, prepare(run))


def best(run: RunDir, key: str = METHOD.objective.key) -> float:
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return max(tiny.metric_values(run, key))


@pytest.mark.parametrize("changes", [{}, LORA], ids=["full", "lora"])
def test_model_learns_which_texts_match(changes: Changes, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | changes)
    before = tiny.metric_values(run, METHOD.objective.key)[0]

    assert best(run) >= max(0.8, before + 0.2)
    for key in ("eval_mrr_at_10", "eval_top1_accuracy"):
        assert best(run, key) > tiny.metric_values(run, key)[0]
    assert tiny.metric_values(run, "eval_spearman") == []


@pytest.mark.parametrize("family", sorted(ENCODERS))
def test_each_family_of_encoders_learns(family: str, tmp_path: Path) -> None:
    base = write_encoder(tmp_path / "model", family)
    steps = {"optimisation__max_steps": 40}
    run = train(tmp_path / "run", base, LEARNS | steps, HARD[:40])
    values = tiny.metric_values(run, "loss")

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    assert sum(values[-5:]) < sum(values[:5])
    AutoModel.from_pretrained(run.artifacts)


@pytest.mark.parametrize(
    ("loss", "rows", "key"),
    [
        ("ranking", HARD, METHOD.objective.key),
        ("cosent", SCORED, "eval_spearman"),
        ("automatic", SCORED, "eval_spearman"),
    ],
)
def test_each_loss_learns(
    loss: str, rows: list[Row], key: str, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, LEARNS | {"embedding__loss_type": loss}, rows)

    assert best(run, key) > tiny.metric_values(run, key)[0] + 0.1
    assert best(run) > tiny.metric_values(run, METHOD.objective.key)[0]


def test_triplets_get_their_margin(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | {"embedding__loss_type": "triplet"}, TRIPLETS)
    losses = tiny.metric_values(run, "eval_loss")

    assert min(losses) < losses[0] / 2


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_vectors_are_pooled_as_by_hand(pooling: str, tmp_path: Path) -> None:
    """One text at a time, without padding, in an encoder that reads in both directions."""
    base = write_encoder(tmp_path / "model", "bert")
    trainer = built(write_run(tmp_path / "run", base, {"embedding__pooling": pooling}, HARD))
    rows = [trainer.train_dataset[place] for place in range(3)]
    batch = trainer.read_batch(trainer.model.eval(), trainer.data_collator(rows))
    plain = AutoModel.from_pretrained(base).eval()

    def by_hand(ids: Tensor) -> Tensor:
        states = plain(input_ids=ids[None]).last_hidden_state[0]
        vector = {"mean": states.mean(dim=0), "cls": states[0], "last": states[-1]}[pooling]
        return normalize(vector, dim=-1)

    for place, row in enumerate(rows):
        texts = row["input_ids"].split(row["sizes"].tolist())
        found = (batch.anchors[place], batch.positives[place], batch.negatives[place])
        for vector, ids in zip(found, texts, strict=True):
            torch.testing.assert_close(vector, by_hand(ids), atol=1e-5, rtol=1e-5)
    assert batch.anchors.dtype == torch.float32


def test_prompts_are_read_with_each_text(model: Path, tmp_path: Path) -> None:
    changes = {"embedding__query_prompt": "query: ", "embedding__passage_prompt": "passage: "}
    trainer = built(write_run(tmp_path / "run", model, changes, HARD))
    row, reader = trainer.train_dataset[0], tiny.tokenizer()
    texts = [reader.decode(ids) for ids in row["input_ids"].split(row["sizes"].tolist())]

    assert texts[0].startswith("query: What is")
    assert [text[:9] for text in texts[1:]] == ["passage: "] * 2


def test_own_negatives_are_limited(model: Path, tmp_path: Path) -> None:
    rows = [{**row, "negatives": ["a", "b", "c"]} for row in ROWS]
    sizes = {
        most: {
            len(row["sizes"])
            for row in built(
                write_run(tmp_path / f"{most}", model, {"embedding__negatives": most}, rows)
            ).train_dataset
        }
        for most in (0, 1, 9)
    }

    assert sizes == {0: {2}, 1: {3}, 9: {5}}


def test_conversations_are_questions_with_answers(model: Path, tmp_path: Path) -> None:
    job = prepare(write_run(tmp_path / "run", model, {}, tiny.rows()))

    assert job.train.rows[0].pair == ("What is 0 plus 0?", "0 plus 0 is 0.")


def test_truncated_texts_end_as_their_tokenizer_ends_them(tmp_path: Path) -> None:
    base = write_encoder(tmp_path / "model", "bert")
    trainer = built(write_run(tmp_path / "run", base, {"data__max_length": 16}, HARD))
    row = trainer.train_dataset[0]
    texts = [ids.tolist() for ids in row["input_ids"].split(row["sizes"].tolist())]

    assert {len(ids) for ids in texts} <= set(range(17))
    assert {ids[0] for ids in texts} == {1}
    assert {ids[-1] for ids in texts} == {2}


@pytest.mark.parametrize(
    ("changes", "rows", "message"),
    [
        ({"embedding__loss_type": "triplet"}, ROWS, "no text that does not match"),
        ({"embedding__loss_type": "cosent"}, ROWS, "no score"),
        ({"embedding__loss_type": "ranking"}, SCORED, "a score"),
        ({}, [{**row, "score": 1.0} for row in ROWS], "the same score"),
        ({"embedding__dimensions": "16, 32"}, ROWS, "32 is no shorter one"),
        ({}, [{"text": "a"}, {"text": "b"}, {"text": "c"}], "no two texts"),
    ],
)
def test_what_cannot_be_learned_is_refused(
    changes: Changes, rows: list[Row], message: str, model: Path, tmp_path: Path
) -> None:
    run = train(tmp_path / "run", model, changes, rows)
    failed = tiny.last_event(run)

    assert isinstance(failed, Failed)
    assert message in failed.message
    assert failed.hint


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_learns_or_is_refused(precision: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | {"precision": precision})
    last, mode = tiny.last_event(run), PRECISIONS[precision]
    if isinstance(last, Failed):
        assert mode.unsupported_reason(hardware.detect()), last
        return
    (started,) = tiny.events_of(run, Started)

    assert best(run) > tiny.metric_values(run, METHOD.objective.key)[0]
    assert started.resolved["compute"] == mode.compute


@pytest.mark.parametrize(
    "changes",
    [
        {},
        LORA | {"precision": "bf16", "adapter__lora_dropout": 0.2, "embedding__mini_batch": 4},
        {"embedding__dimensions": "16, 8", "embedding__loss_type": "triplet"},
    ],
    ids=["full", "cached lora", "triplet"],
)
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes, HARD[:20])
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)


def gradients(trainer: VectorTrainer, rows: int = 12) -> dict[str, Tensor]:
    """Return the gradients of a batch of training rows."""
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(rows)])
    model = trainer.model.train()
    weights = {name: one for name, one in model.named_parameters() if one.requires_grad}
    found = torch.autograd.grad(trainer.compute_loss(model, batch), [*weights.values()])
    return dict(zip(weights, found, strict=True))


@pytest.mark.parametrize(
    "changes", [{}, LORA | {"adapter__lora_dropout": 0.0}], ids=["full", "lora"]
)
@pytest.mark.parametrize("size", [1, 5, 64])
def test_cached_gradients_are_those_of_the_whole_batch(
    size: int, changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = gradients(built(write_run(tmp_path / "whole", model, changes, HARD)))
    cached = gradients(
        built(write_run(tmp_path / "parts", model, changes | {"embedding__mini_batch": size}, HARD))
    )

    assert whole.keys() == cached.keys()
    assert any(bool(one.any()) for one in whole.values())
    for name, gradient in whole.items():
        rounding = 1e-4 * float(gradient.abs().max())
        torch.testing.assert_close(cached[name], gradient, rtol=1e-4, atol=rounding)


def test_accumulated_loss_is_the_mean_over_rows(model: Path, tmp_path: Path) -> None:
    """Of triplets, which do not depend on the other rows of a batch."""
    curves = [
        tiny.metric_values(
            train(
                tmp_path / f"{size}",
                model,
                {
                    "embedding__loss_type": "triplet",
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                },
                HARD,
            ),
            "loss",
        )
        for size, times in ((4, 1), (1, 4))
    ]

    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


def vectors_of(folder: Path, texts: Sequence[str], adapter: Path | None = None) -> Tensor:
    """Return vectors by plain transformers, one text at a time."""
    model: Any = AutoModel.from_pretrained(folder)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter)
    reader = AutoTokenizer.from_pretrained(adapter or folder)
    with torch.no_grad():
        states = [model.eval()(**reader(text, return_tensors="pt"))[0][0] for text in texts]
    return normalize(torch.stack([one.mean(dim=0) for one in states]), dim=-1)


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_model_loads_without_the_studio(adapter: Changes, model: Path, tmp_path: Path) -> None:
    """Its loss on the validation rows, in one batch, is the run's."""
    one_batch = {"evaluation__per_device_eval_batch_size": 64}
    run = train(tmp_path / "run", model, LEARNS | adapter | one_batch)
    rows = prepare(write_run(tmp_path / "other", model)).validation.rows
    place = (model, run.artifacts) if adapter else (run.artifacts, None)
    first, second = (vectors_of(place[0], [row.pair[i] for row in rows], place[1]) for i in (0, 1))
    logits = 20 * first @ second.T
    loss = torch.nn.functional.cross_entropy(logits, torch.arange(len(rows)))

    assert float(loss) == pytest.approx(tiny.metric_values(run, "eval_loss")[-1], rel=1e-3)


def test_files_of_sentence_transformers(model: Path, tmp_path: Path) -> None:
    changes = {
        "embedding__pooling": "last",
        "embedding__query_prompt": "query: ",
        "data__max_length": 64,
    }
    run = train(tmp_path / "run", model, changes)

    def read(name: str) -> Any:  # noqa: ANN401 -- whatever JSON a file holds
        return json.loads((run.artifacts / name).read_text(encoding="utf-8"))

    assert [one["path"] for one in read("modules.json")] == ["", "1_Pooling", "2_Normalize"]
    assert read("sentence_bert_config.json") == {"max_seq_length": 64, "do_lower_case": False}
    assert read("config_sentence_transformers.json")["prompts"] == {
        "query": "query: ",
        "document": "",
    }
    pooling = read("1_Pooling/config.json")
    assert [name for name, value in pooling.items() if value is True] == [
        *("pooling_mode_lasttoken", "include_prompt"),
    ]
    assert pooling["word_embedding_dimension"] == 32
    assert read("config.json")["architectures"] == ["LlamaModel"]
    assert not (run.artifacts / "chat_template.jinja").exists()
    card = (run.artifacts / "README.md").read_text(encoding="utf-8")
    assert "library_name: sentence-transformers\npipeline_tag: sentence-similarity\n" in card


@pytest.mark.parametrize("kind", ["full", "adapter", "merged"])
def test_exports_give_the_same_vectors(kind: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | ({} if kind == "full" else LORA))
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind=kind, dtype="float32")
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    assert execute_export(folder.root, StopHandler()) == 0
    texts = ["What is 3 plus 4?", "7 plus 1 is 8."]
    whole = (run.artifacts, None) if kind == "full" else (model, run.artifacts)
    place = (model, folder.files) if kind == "adapter" else (folder.files, None)

    assert (folder.files / "1_Pooling" / "config.json").is_file()
    torch.testing.assert_close(
        vectors_of(place[0], texts, place[1]),
        vectors_of(whole[0], texts, whole[1]),
        atol=1e-5,
        rtol=1e-4,
    )


def test_embedding_model_can_be_trained_further(model: Path, tmp_path: Path) -> None:
    first = train(tmp_path / "first", model, LEARNS)
    again = train(tmp_path / "again", first.artifacts, {})
    as_text = tiny.train(tmp_path / "text", first.artifacts, data__chat_template="chatml")

    start = tiny.metric_values(again, METHOD.objective.key)[0]
    assert start == pytest.approx(tiny.metric_values(first, METHOD.objective.key)[-1], abs=0.02)
    assert isinstance(tiny.last_event(as_text), Failed)


def test_dry_run_counts_the_texts_of_a_row(model: Path, tmp_path: Path) -> None:
    """Rows without negatives need less than the recipe allows; mini-batches need less still."""
    peaks = {}
    for name, rows, changes in (
        ("hard", HARD, {}),
        ("plain", ROWS, {}),
        ("cached", HARD, {"embedding__mini_batch": 4}),
    ):
        sized = changes | {"optimisation__per_device_train_batch_size": 32}
        run = write_run(tmp_path / name, model, sized, rows)
        folder = TaskDir(tmp_path / f"task {name}")
        folder.files.mkdir(parents=True)
        params = {
            "recipe": load_recipe(run).model_dump(mode="json"),
            "job": run.job.read_text(encoding="utf-8"),
        }
        found = measure(folder, params, lambda _part, _share: None)
        peaks[name] = found["at_peak"]["activations"]

    assert peaks["plain"] == pytest.approx(peaks["hard"] * 2 / 3, rel=0.1)
    assert peaks["cached"] < peaks["plain"] / 4


def test_model_without_a_chat_template_is_enough(tmp_path: Path) -> None:
    base = tmp_path / "base"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(tiny.llama()).save_pretrained(base)
    reader = tiny.tokenizer()
    reader.chat_template = None
    reader.save_pretrained(base)

    assert isinstance(tiny.last_event(train(tmp_path / "run", base)), Finished)


def test_untrained_model_knows_nothing(model: Path, tmp_path: Path) -> None:
    """The loss of equal similarities is the logarithm of the texts in a batch."""
    trainer = built(write_run(tmp_path / "run", model))
    batch = trainer.data_collator([trainer.train_dataset[place] for place in range(10)])
    with torch.no_grad():
        for weight in trainer.model.parameters():
            weight.fill_(0.01)
        loss = trainer.compute_loss(trainer.model, batch)

    assert float(loss) == pytest.approx(log(10), rel=1e-3)


def decoded(chunks: Sequence[GenerationChunk]) -> Tensor:
    values = [value for chunk in chunks for value in chunk.values]
    contents = [bytearray(b64decode(value)) for value in values]
    return torch.stack([torch.frombuffer(one, dtype=torch.float32) for one in contents])


@pytest.mark.parametrize("family", ["llama", "bert"])
@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_inference_service_gives_the_vectors_of_training(
    family: str, adapter: Changes, model: Path, tmp_path: Path
) -> None:
    """In the order of the texts, whatever their lengths; and those of the base model before."""
    base = model if family == "llama" else write_encoder(tmp_path / "base", family)
    run = train(tmp_path / "run", base, LEARNS | adapter)
    texts = [row[name] for row in ROWS[:20] for name in ("anchor", "positive")] + ["7"]
    reader = AutoTokenizer.from_pretrained(run.artifacts)
    asked = GenerationRequest(
        model=str(base if adapter else run.artifacts),
        adapter=str(run.artifacts) if adapter else "",
        ids=[],
        stops=[],
        texts=reader(texts)["input_ids"],
        pooling="mean",
    )
    cache, sent = ModelCache(), list[GenerationChunk]()
    with cache.model_for(asked) as (loaded, _tokenizer):
        send_values(asked, loaded, sent.append, lambda: False)
    whole = (base, run.artifacts) if adapter else (run.artifacts, None)

    torch.testing.assert_close(
        decoded(sent), vectors_of(whole[0], texts, whole[1]), atol=1e-5, rtol=1e-4
    )
    assert sent[-1].end is not None
    assert sent[-1].end.tokens == sum(map(len, asked.texts))
    before = asked.model_copy(update={"model": str(base), "adapter": ""})
    with cache.model_for(before) as (loaded, _tokenizer):
        sent = []
        send_values(before, loaded, sent.append, lambda: False)
    torch.testing.assert_close(decoded(sent), vectors_of(base, texts), atol=1e-5, rtol=1e-4)


def test_texts_of_similar_length_are_computed_together() -> None:
    assert list(batches([3, 9, 1, 4, 8], 18)) == [[1, 4], [3, 0, 2]]
    assert list(batches([99, 1], 18)) == [[0], [1]]
    assert list(batches([])) == []
