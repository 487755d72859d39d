"""Token classification: what taggers learn of words, and what they count."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    pipeline,
)

from studio.errors import TrainingError
from studio.intake.row_formats.tagged_words import find_entities
from studio.methods.tokens import METHOD, TokensRecipe
from studio.methods.tokens.counting import EntityCounts, TagAccumulator
from studio.methods.tokens.texts import list_tags, tokenise
from studio.methods.tokens.trainer import TagTrainer, build, choose_head
from studio.protocols.entity_reports import ENTITY_REPORTS
from studio.protocols.events import Failed, Finished, Started
from studio.protocols.inference_service import GenerationRequest
from studio.protocols.run_dir import RunDir
from studio.protocols.tokenizer_service import TokenizerRequest
from studio.recipe.exports import ExportSpec
from studio.runner.execution import execute_export, execute_run
from studio.runner.inference.model_cache import ModelCache
from studio.runner.inference.reading import tag_words
from studio.runner.training_run import load_recipe
from studio.training.data.rows import to_training_row
from studio.training.data.tagged_words import find_places, tokenise_words
from studio.training.data.token_preview import tokenise_tagged
from studio.training.job import TrainingJob
from studio.training.stop_handler import StopHandler
from tests.training import tiny
from tests.training.checkpoints import resumed_runs
from tests.training.checkpoints.resumed_runs import SAVED, STEPS
from tests.training.runs.test_encoders import make_tokenizer, write_encoder
from tests.training.tiny import LORA, Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning")]


def sentence(*parts: tuple[str, str]) -> Row:
    """Return a row from pieces of text with their labels, or none."""
    words: list[str] = []
    tags: list[str] = []
    for text, label in parts:
        own = text.split()
        words += own
        tags += [f"{'I' if place else 'B'}-{label}" if label else "O" for place in range(len(own))]
    return {"text": " ".join(words), "words": words, "tags": tags}


ROWS = [
    sentence((f"{one} plus {two}", ""), (name, "name"), ("is 7", ""), (town, "town"), ("is 1", ""))
    for one, two, name, town in product(
        range(5), range(3), ("Ada", "Bo Lund", "Cy"), ("Rome", "New York")
    )
]
LEARNS: Changes = {"optimisation__max_steps": 60, "optimisation__learning_rate": 3e-3}
runs = tiny.Runs(ROWS, method="tokens", samples__max_new_tokens=1)
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


def built(run: RunDir) -> TagTrainer:
    """Build the trainer of a run."""
    recipe = load_recipe(run)
    assert isinstance(recipe, TokensRecipe)
    return build(recipe, prepare(run))


def best_f1(run: RunDir) -> float:
    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    return max(tiny.metric_values(run, METHOD.objective.key))


@pytest.mark.parametrize("changes", [{}, LORA], ids=["full", "lora"])
def test_model_learns_entities(changes: Changes, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | changes)
    report = ENTITY_REPORTS.read(run)[-1]

    assert best_f1(run) >= 0.95
    assert tiny.metric_values(run, METHOD.objective.key)[0] < 0.5
    assert max(tiny.metric_values(run, "eval_tag_accuracy")) > 0.95
    assert [one.label for one in report.labels] == ["name", "town"]
    assert report.f1 == tiny.metric_values(run, METHOD.objective.key)[-1]
    assert sum(one.support for one in report.labels) == 2 * report.texts


@pytest.mark.parametrize("family", ["bert", "modernbert", "roberta"])
@pytest.mark.parametrize("changes", [{}, LORA], ids=["full", "lora"])
def test_encoder_learns_entities(family: str, changes: Changes, tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "model", family, max_position_embeddings=128)
    run = train(tmp_path / "run", model, LEARNS | {"optimisation__max_steps": 120} | changes)

    assert best_f1(run) >= 0.95


@pytest.mark.parametrize("precision", ["bf16", "fp16", "bf16_pure"])
def test_scores_are_computed_in_float32(precision: str, model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS | {"precision": precision})
    (started,) = tiny.events_of(run, Started)

    assert best_f1(run) >= 0.95
    assert started.resolved["audit"]["formats"]["Float32Linear"] == "float32"


def words_of(row: Row, *, is_first: bool, reader: PreTrainedTokenizerBase) -> list[str]:
    """Return the text of the tokens that say what the words of a row are."""
    ids, numbers, _length = tokenise_words(row["text"], row["words"], reader, 128)
    places = find_places(numbers, is_first=is_first)
    return [reader.decode([ids[places[word]]]) for word in range(len(row["words"]))]


def test_tag_stands_at_the_last_token_of_its_word_or_the_first() -> None:
    """The first in a model that reads in both directions: opened and closed by its tokenizer."""
    row = ROWS[0]
    lasts = words_of(row, is_first=False, reader=tiny.tokenizer())
    firsts = words_of(row, is_first=True, reader=make_tokenizer())

    assert row["words"] == ["0", "plus", "0", "Ada", "is", "7", "Rome", "is", "1"]
    assert all(word.endswith(last.strip()) for word, last in zip(row["words"], lasts, strict=True))
    assert all(
        f" {word}".startswith(first) or word.startswith(first)
        for word, first in zip(row["words"], firsts, strict=True)
    )
    assert (lasts[3], firsts[3]) != ("Ada", "Ada")


@pytest.mark.parametrize("is_encoder", [False, True])
def test_batch_has_the_tags_of_its_words(is_encoder: bool, model: Path, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    base = write_encoder(tmp_path / "bert", "bert") if is_encoder else model
    run = write_run(tmp_path / "run", base)
    trainer = built(run)
    names = trainer.model.config.id2label

    assert list(names.values()) == ["O", "B-name", "I-name", "B-town", "I-town"]
    for example, row in zip(trainer.train_dataset, trainer.job.train.rows, strict=True):
        given = [names[label] for label in example["labels"].tolist() if label != -100]
        assert given == list(row.tags)


def test_truncated_words_are_left_out_and_counted(model: Path, tmp_path: Path) -> None:
    whole = built(write_run(tmp_path / "run", model))
    size = whole.job.train.longest - 8
    cut = built(write_run(tmp_path / "cut", model, {"data__max_length": size}))
    lost = 0
    for data, rows in (
        (cut.train_dataset, cut.job.train.rows),
        (cut.eval_dataset, cut.job.validation.rows),
    ):
        for example, row in zip(data, rows, strict=True):
            read = int((example["labels"] != -100).sum())
            lost += sum(entity.end > read for entity in find_entities(row.tags))

    assert whole.facts == {}
    assert cut.facts == {"lost_entities": lost}
    assert 0 < lost < cut.job.train.truncated + cut.job.validation.truncated + 1
    assert cut.job.train.longest == size
    run = train(tmp_path / "trained", model, {"data__max_length": size})
    (started,) = tiny.events_of(run, Started)
    assert started.resolved["lost_entities"] == lost


def test_rows_without_a_whole_word_are_dropped(model: Path, tmp_path: Path) -> None:
    rows = [*ROWS, *(sentence(("a" * 90, "name")) for _ in range(3))]
    run = write_run(tmp_path / "run", model, {"data__max_length": 60}, rows)
    job = prepare(run)

    assert job.train.dropped + job.validation.dropped == 3
    assert job.train.cut_off == job.train.dropped


def test_word_cut_in_two_is_left_out() -> None:
    """Half a word would get its tag where the model has not read the rest."""
    reader = tiny.tokenizer()
    ids, numbers, length = tokenise_words("is Rome", ["is", "Rome"], reader, 3)

    assert length > len(ids) == 3
    assert set(numbers) == {0, -100}


def test_words_in_one_token_are_one() -> None:
    """The token that holds both has the tag of the first."""
    reader = tiny.tokenizer()
    text, words = "1 plus", ["1", "pl", "us"]
    _ids, numbers, _length = tokenise_words(text, words, reader, 9)

    assert len(_ids) == 2
    assert find_places(numbers, is_first=False) == {0: 0, 1: 1}


def test_batch_size_and_accumulation_do_not_change_the_loss(model: Path, tmp_path: Path) -> None:
    """Also where the batches have different numbers of words."""
    rows = [row if n % 3 else sentence(("plus", ""), ("Ada", "name")) for n, row in enumerate(ROWS)]
    curves = [
        tiny.metric_values(
            train(
                tmp_path / f"{size}",
                model,
                {
                    "optimisation__per_device_train_batch_size": size,
                    "optimisation__gradient_accumulation_steps": times,
                    "optimisation__train_sampling_strategy": "sequential",
                },
                rows,
            ),
            "loss",
        )
        for size, times in ((4, 1), (1, 4))
    ]

    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@pytest.mark.parametrize("changes", [{}, LORA | {"precision": "bf16"}], ids=["full", "lora"])
def test_resumed_run_equals_an_uninterrupted_one(
    changes: Changes, model: Path, tmp_path: Path
) -> None:
    whole = train(tmp_path / "whole", model, STEPS | SAVED | changes)
    again = resumed_runs.interrupt_run(whole, 7, tmp_path / "again")

    assert execute_run(again.root, StopHandler()) == 0
    assert resumed_runs.curve(again) == resumed_runs.curve(whole)
    assert resumed_runs.result(again) == resumed_runs.result(whole)
    assert resumed_runs.bits(again) == resumed_runs.bits(whole)
    assert ENTITY_REPORTS.read(again) == ENTITY_REPORTS.read(whole)


@pytest.mark.parametrize("adapter", [{}, LORA], ids=["full", "lora"])
def test_model_loads_without_the_studio(adapter: Changes, model: Path, tmp_path: Path) -> None:
    """Its loss on the validation rows is the run's."""
    run = train(tmp_path / "run", model, LEARNS | adapter)
    config = AutoConfig.from_pretrained(run.artifacts)
    place = model if adapter else run.artifacts
    loaded = AutoModelForTokenClassification.from_pretrained(place, config=config)
    if adapter:
        loaded = PeftModel.from_pretrained(loaded, run.artifacts)
    validation = built(write_run(tmp_path / "other", model)).eval_dataset
    total = words = 0.0
    for row in validation:
        with torch.no_grad():
            logits = loaded.eval()(input_ids=row["input_ids"][None]).logits[0]
        total += float(cross_entropy(logits, row["labels"], reduction="sum"))
        words += int((row["labels"] != -100).sum())

    assert config.label2id == {"O": 0, "B-name": 1, "I-name": 2, "B-town": 3, "I-town": 4}
    assert total / words == pytest.approx(tiny.metric_values(run, "eval_loss")[-1], rel=1e-4)


TEXT = "3 plus 1 Bo Lund is 7 New York is 1"


def write_word_pieces(folder: Path) -> None:
    """Save a tokenizer like BERT's, which tells a pipeline where words begin."""
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # noqa: S106 -- no password
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    learner = trainers.WordPieceTrainer(vocab_size=60, special_tokens=special, show_progress=False)
    inner.train_from_iterator((row["text"] for row in ROWS), learner)
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "sep_token": "[SEP]"}
    made = PreTrainedTokenizerFast(tokenizer_object=inner, **names)
    made.save_pretrained(folder)


def test_pipeline_finds_the_entities_of_an_encoder(tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "model", "bert", max_position_embeddings=128)
    write_word_pieces(model)
    run = train(tmp_path / "run", model, LEARNS | {"optimisation__max_steps": 120})
    assert best_f1(run) >= 0.95
    finder = pipeline(
        "token-classification", model=str(run.artifacts), aggregation_strategy="first"
    )
    found = [(one["entity_group"], TEXT[one["start"] : one["end"]]) for one in finder(TEXT)]

    assert found == [("name", "Bo Lund"), ("town", "New York")]


def test_pipeline_tags_the_last_token_of_a_word(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS)
    tags = {
        one["end"]: one["entity"]
        for one in pipeline("token-classification", model=str(run.artifacts))(TEXT)
    }
    ends = [match.end() for match in re.finditer(r"\w+", TEXT)]

    assert [tags.get(end, "O") for end in ends] == [
        *("O", "O", "O", "B-name", "I-name", "O", "O", "B-town", "I-town", "O", "O"),
    ]


@pytest.mark.parametrize("is_encoder", [False, True], ids=["causal", "encoder"])
def test_card_of_an_export_reads_a_text(is_encoder: bool, model: Path, tmp_path: Path) -> None:  # noqa: FBT001 -- a parameter
    """The code of the card, run as it stands there."""
    base = write_encoder(tmp_path / "bert", "bert", max_position_embeddings=128)
    steps = {"optimisation__max_steps": 120}
    run = train(tmp_path / "run", base if is_encoder else model, LEARNS | steps | LORA)
    assert best_f1(run) >= 0.95
    folder = run.export(1)
    folder.root.mkdir(parents=True)
    spec = ExportSpec(run=run.root, kind="merged", dtype="float32")
    folder.job.write_text(spec.model_dump_json(), encoding="utf-8")
    assert execute_export(folder.root, StopHandler()) == 0
    card = (folder.files / "README.md").read_text(encoding="utf-8")
    code = card.partition("```python\n")[2].partition("```")[0]
    assert code.count("path/to/this/folder") == 2
    found: dict[str, Any] = {}
    code = code.replace("path/to/this/folder", str(folder.files)).replace("A text", TEXT)
    exec(code, found)  # noqa: S102 -- our own card

    assert [tag for word, tag in found["tags"] if tag != "O"] == [
        *("B-name", "I-name", "B-town", "I-town"),
    ]


@pytest.mark.parametrize("is_encoder", [False, True], ids=["causal", "encoder"])
def test_inference_service_tags_words_as_in_training(
    is_encoder: bool,  # noqa: FBT001 -- a parameter
    model: Path,
    tmp_path: Path,
) -> None:
    base = write_encoder(tmp_path / "bert", "bert", max_position_embeddings=128)
    steps = {"optimisation__max_steps": 120}
    run = train(tmp_path / "run", base if is_encoder else model, LEARNS | steps)
    words = TEXT.split()
    reading = TokenizerRequest(
        kind="words",
        model=str(run.artifacts),
        row={"text": TEXT, "words": words, "tags": ["O"] * len(words)},
        is_encoder=is_encoder,
    )
    prompt = tokenise_tagged(reading, AutoTokenizer.from_pretrained(run.artifacts))
    request = GenerationRequest(
        model=str(run.artifacts),
        ids=prompt.ids,
        stops=[],
        gives_scores=True,
        places=prompt.places,
        gives_tags=True,
    )
    with ModelCache().model_for(request) as (loaded, _tokenizer):
        tags = tag_words(request, loaded).tags

    assert [one.tag for one in tags] == [
        "O",
        "O",
        "O",
        "B-name",
        "I-name",
        "O",
        "O",
        "B-town",
        "I-town",
        "O",
        "O",
    ]
    assert min(one.likely for one in tags) > 0.5


def test_words_in_one_token_are_one_entity(model: Path, tmp_path: Path) -> None:
    run = train(tmp_path / "run", model, LEARNS)
    ids = AutoTokenizer.from_pretrained(run.artifacts)(TEXT)["input_ids"]
    request = GenerationRequest(
        model=str(run.artifacts), ids=ids, stops=[], gives_scores=True, places=[0] * 3
    )
    with ModelCache().model_for(request) as (loaded, _tokenizer):
        loaded.config.id2label = dict.fromkeys(range(5), "B-name")
        tags = tag_words(request, loaded).tags

    assert [one.tag for one in tags] == ["B-name", "I-name", "I-name"]


def test_head_with_the_labels_of_the_data_is_kept(model: Path, tmp_path: Path) -> None:
    first = train(tmp_path / "first", model, LEARNS)
    names = [row for row in ROWS if "Ada" in row["words"]]
    again = train(tmp_path / "again", first.artifacts, {}, names)
    (started,) = tiny.events_of(again, Started)

    assert started.resolved["head"] == "kept from the base model"
    assert tiny.metric_values(again, METHOD.objective.key)[0] >= 0.95
    assert AutoConfig.from_pretrained(again.artifacts).num_labels == 5


@pytest.mark.parametrize(
    ("true", "given", "scores"),
    [
        ("B-x I-x O B-y", "B-x I-x O B-y", (1, 1, 1)),
        ("B-x I-x O B-y", "B-x O O B-y", (1 / 2, 1 / 2, 1 / 2)),
        ("B-x I-x O B-y", "B-x I-x O B-x", (1 / 2, 1 / 2, 1 / 2)),
        ("B-x I-x O B-y", "I-x I-x O O", (1, 1 / 2, 2 / 3)),
        ("B-x B-x O O", "B-x I-x O O", (0, 0, 0)),
        ("O O O O", "B-x O B-y I-y", (0, 0, 0)),
        ("B-x O B-x B-x", "O O O O", (0, 0, 0)),
        ("O O", "O O", (0, 0, 0)),
        ("B-x I-y", "B-x B-y", (1, 1, 1)),
    ],
)
def test_entities_are_counted(true: str, given: str, scores: tuple[float, float, float]) -> None:
    """By hand: only an entity whose start, end and label are right counts."""
    counts = EntityCounts()
    counts.add(true.split(), given.split())

    assert counts.scores() == pytest.approx(scores)


def test_entities_are_counted_by_label() -> None:
    counts = EntityCounts()
    counts.add(["B-x", "I-x", "O", "B-y", "B-x"], ["B-x", "I-x", "B-y", "B-y", "O"])
    counts.add(["B-x"], ["B-x"])

    assert counts.labels == ["x", "y"]
    assert counts.scores("x") == pytest.approx((1, 2 / 3, 4 / 5))
    assert counts.scores("y") == pytest.approx((1 / 2, 1, 2 / 3))
    assert counts.scores() == pytest.approx((3 / 4, 3 / 4, 3 / 4))


def test_words_are_counted_without_other_tokens() -> None:
    sums = TagAccumulator(torch.device("cpu"), ["O", "B-x", "I-x"])
    labels = torch.tensor([[-100, 1, 2, 0], [0, -100, 1, -100]])
    given = torch.tensor([[2, 1, 2, 0], [1, 1, 0, 1]])
    sums.add_words(torch.tensor(6.0), given, labels, torch.tensor(8))
    sums.add_entities(given, labels)
    found = sums.read()

    assert (found["mean_loss"], found["tag_accuracy"]) == (6 / 5, 3 / 5)
    assert (found["entity_precision"], found["entity_recall"]) == (1 / 2, 1 / 2)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["O", "O"], "No word of these texts is marked as an entity."),
        (["B-x", "B-x"], 'All words have the tag "B-x".'),
        ([], "has no tags"),
    ],
)
def test_rows_without_a_difference_are_refused(tags: list[str], message: str) -> None:
    words = ["a", "b"][: len(tags)]
    row = to_training_row({"text": "a b", "words": words, "tags": tags}, 1, "training")

    with pytest.raises(TrainingError, match=message):
        list_tags([row])


def test_rows_without_words_are_refused(model: Path, tmp_path: Path) -> None:
    failed = tiny.last_event(train(tmp_path / "run", model, {}, [{"text": "a"}, {"text": "b"}]))

    assert isinstance(failed, Failed)
    assert (failed.code, "has no tags" in failed.message) == ("bad_row", True)
