"""The closed form of memory of encoders and encoder-decoders, held to dry runs of each family."""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from transformers import CONFIG_MAPPING, AutoModel, AutoModelForSeq2SeqLM, PreTrainedConfig

from studio.methods import METHODS
from studio.methods.seq2seq import FAMILIES
from studio.protocols.run_dir import RunDir
from studio.runner.tasks import memory_dry_run
from studio.runner.training_run import load_recipe
from studio.services.estimates import memory
from studio.services.estimates.activation_memory import BatchShape
from studio.training.job import TrainingJob
from studio.training.memory import dry_run
from studio.weights import encoder_layers, model_facts
from studio.weights.encoders import ENCODERS
from studio.weights.family_limits import FLOAT16_OVERFLOWS
from tests.support.covering import choose
from tests.training import tiny
from tests.training.memory.test_dry_run import dry
from tests.training.runs import test_translation
from tests.training.runs.test_encoders import make_tokenizer
from tests.training.tiny import Changes, Row

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

_ROWS, _HELD_BACK = 20, 4
VERIFIED = {**encoder_layers.ENCODER_LAYERS, **encoder_layers.PAIR_LAYERS}
UNKNOWN = {*ENCODERS, *FAMILIES} - {*VERIFIED}
WITHOUT_CHECKPOINTING = {"albert", "mpnet", *encoder_layers.UNVERIFIED_CHECKPOINTING}
COMPUTES_MASKS = {"modernbert"}
"""Families whose control flow reads values, so that a real step is measured."""


@dataclass(frozen=True, slots=True)
class Size:
    """The dimensions of a model."""

    hidden: int
    inner: int
    layers: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Batch:
    """How many texts a batch has, and how often each repeats a sentence."""

    examples: int
    sentences: int


@dataclass(frozen=True, slots=True)
class Case:
    family: str
    precision: str
    adapter: str
    checkpointed: bool
    size: Size
    batch: Batch

    def __str__(self) -> str:
        again = "-checkpointed" if self.checkpointed else ""
        place = f"{self.size.hidden}x{self.batch.examples}"
        return f"{self.family}-{self.precision}-{self.adapter}{again}-{place}"


SMALL, LARGE = Size(128, 512, 4, 2048), Size(256, 640, 3, 4096)
CELLS = [(LARGE, Batch(8, 15)), (SMALL, Batch(2, 30))]
"""Each case is measured for two sizes of models, and two shapes of batches."""
MORE_CELLS = [(LARGE, Batch(2, 30)), (SMALL, Batch(16, 5))]
EXAMPLES = {"bert", "modernbert", "bart", "t5"}
"""Families that are also measured with the other combinations."""


def is_possible(case: Case) -> bool:
    """Whether a run has such a setting."""
    overflow = FLOAT16_OVERFLOWS.get(case.family)
    return not (
        (case.checkpointed and case.family in WITHOUT_CHECKPOINTING)
        or (case.precision == "bf16_pure" and case.adapter == "lora")
        or (case.precision == "fp16" and overflow is not None and overflow.is_certain)
    )


def pairs(case: Case) -> list[object]:
    """Show of each family every number format, adapter, size and batch, and checkpointing."""
    settings = (case.precision, case.adapter, case.checkpointed, (case.size, case.batch))
    return [(case.family, name, value) for name, value in enumerate(settings)]


ALL_CASES = [
    case
    for family, precision, adapter, checkpointed in product(
        VERIFIED, ("fp32", "bf16", "fp16", "bf16_pure"), ("full", "lora"), (False, True)
    )
    for cell in (*CELLS, *(MORE_CELLS if family in EXAMPLES else ()))
    if is_possible(case := Case(family, precision, adapter, checkpointed, *cell))
]
CASES = choose(ALL_CASES, pairs)


@pytest.fixture(scope="module")
def process() -> ProcessPoolExecutor:
    """Start processes that have the packages, for one dry run each.

    Several models with a head in one process crash torch.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return ProcessPoolExecutor(1, context, max_tasks_per_child=1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_formula_matches_dry_run(case: Case, process: ProcessPoolExecutor, tmp_path: Path) -> None:
    estimated, measured = process.submit(both, case, tmp_path).result()

    assert estimated == pytest.approx(measured, rel=0.1)


@pytest.mark.parametrize("family", sorted(UNKNOWN))
def test_unknown_families_get_no_estimate(family: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", family, SMALL)
    method = "seq2seq" if family in FAMILIES else "classify"
    recipe = tiny.recipe(method=method, samples__max_new_tokens=1)
    batch = BatchShape(4, 50, 20)

    assert memory.estimate(recipe, model_facts.read(folder), batch, on_gpu=False) is None


@pytest.mark.parametrize("family", sorted(encoder_layers.UNVERIFIED_CHECKPOINTING))
def test_unverified_checkpointing_gets_no_estimate(family: str, tmp_path: Path) -> None:
    facts = model_facts.read(write_model(tmp_path / "model", family, SMALL))
    known, unknown = (
        memory.estimate(
            tiny.recipe(
                method="classify",
                samples__max_new_tokens=1,
                optimisation__activation_checkpointing=is_checkpointed,
            ),
            facts,
            BatchShape(4, 50, 1),
            on_gpu=False,
        )
        for is_checkpointed in (False, True)
    )

    assert known is not None
    assert unknown is None


@pytest.mark.parametrize(
    "changes",
    [
        {"adapter__kind": "oft"},
        {"adapter__trained_layers": 1},
        {"adapter__kind": "lora", "adapter__target_modules": "attention"},
        {"adapter__kind": "lora", "adapter__variant": "dora"},
        {"model__attention": "eager"},
    ],
)
def test_unverified_settings_get_no_estimate(changes: Changes, tmp_path: Path) -> None:
    known = model_facts.read(write_model(tmp_path / "model", "bert", SMALL))
    plain, other = (
        tiny.recipe(method="classify", samples__max_new_tokens=1, **settings)
        for settings in ({}, changes)
    )

    assert memory.estimate(plain, known, BatchShape(4, 50, 1), on_gpu=False) is not None
    assert memory.estimate(other, known, BatchShape(4, 50, 1), on_gpu=False) is None


def both(case: Case, folder: Path) -> tuple[int, int]:
    """Return the bytes that the closed form says of a run, and those that its dry run does."""
    model = write_model(folder / "model", case.family, case.size)
    is_pair = case.family in FAMILIES
    changes: Changes = {
        "method": "seq2seq" if is_pair else "classify",
        "precision": case.precision,
        "adapter__kind": case.adapter,
        "optimisation__activation_checkpointing": case.checkpointed,
        "optimisation__per_device_train_batch_size": case.batch.examples,
        "numerics__health": False,
        "data__max_length": 500,
    }
    if not is_pair:
        changes["samples__max_new_tokens"] = 1
    if case.family in _TRANSLATORS:
        source, target = test_translation.LANGUAGES[_TRANSLATORS[case.family]]
        changes |= {"rewriting__source_language": source, "rewriting__target_language": target}
    rows = [row(number, case.batch.sentences, is_pair) for number in range(_ROWS)]
    run = tiny.write_run(folder / "run", model, rows, **changes)
    found = real(run) if case.family in COMPUTES_MASKS else dry(folder, run)
    recipe, facts = load_recipe(run), model_facts.read(model)
    length = found["longest_example"]
    shape = BatchShape(
        case.batch.examples,
        length,
        found["longest_answer"],
        _ROWS - _HELD_BACK,
        length,
        _HELD_BACK,
    )
    closed = memory.estimate(recipe, facts, shape, on_gpu=False)
    assert closed is not None
    exact = memory.from_dry_run(recipe, facts, shape, found["at_peak"], on_gpu=False)
    return closed.total, exact.total


def real(run: RunDir) -> dict[str, Any]:
    """Measure a step on real tensors, as a dry run does on fake ones."""
    recipe = load_recipe(run)
    method = import_module(f"studio.methods.{recipe.method}.trainer")
    job = TrainingJob.prepare(
        recipe,
        run,
        lambda _phase: None,
        tokenise=method.tokenise,
        choose_head=getattr(method, "choose_head", None),
        kinds=METHODS[recipe.method].trainable_kinds,
    )
    measured = dry_run.count_memory(memory_dry_run._build_plan(recipe, job, method))
    return memory_dry_run._summarise(job, measured)


_TRANSLATORS = {"mbart": "mbart50", "m2m_100": "nllb"}


def row(number: int, sentences: int, is_pair: bool) -> Row:  # noqa: FBT001 -- a test's own
    prompt = f"{'What is one plus two? ' * sentences}{number}"
    answer = f"{'The sum is three. ' * (sentences // 2)}{number}" if is_pair else "ab"[number % 2]
    turns = (("user", prompt), ("assistant", answer))
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def write_model(folder: Path, family: str, size: Size) -> Path:
    config = make_config(family, size)
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModel
    kind.from_config(config).save_pretrained(folder)
    name = _TRANSLATORS.get(family)
    (test_translation.make_tokenizer(name) if name else make_tokenizer()).save_pretrained(folder)
    return folder


def make_config(family: str, size: Size) -> PreTrainedConfig:
    """Return a config of four heads; families name its values in different ways."""
    kind = CONFIG_MAPPING[family]
    known = {*kind().to_dict(), *kind.attribute_map}
    layers = {name: size.layers for name in _LAYERS if name in known}
    if {"d_kv", "encoder_layers"} & known:
        layers.pop("num_hidden_layers", None)
    values = {
        **dict.fromkeys(_WIDTHS, size.hidden),
        **dict.fromkeys(("intermediate_size", "d_ff", *_INNER), size.inner),
        **dict.fromkeys(("num_attention_heads", "num_heads", *_HEADS), 4),
        "vocab_size": size.vocabulary,
        "d_kv": size.hidden // 4,
        **_REST,
    }
    given = {name: value for name, value in values.items() if name in known}
    start = {"decoder_start_token_id": 0} if "d_kv" in known else {}
    return kind(**given | layers | start)


_LAYERS = (
    "num_hidden_layers",
    "num_layers",
    "num_decoder_layers",
    "encoder_layers",
    "decoder_layers",
)
_WIDTHS = ("hidden_size", "embedding_size", "d_model")
_INNER = ("encoder_ffn_dim", "decoder_ffn_dim")
_HEADS = ("encoder_attention_heads", "decoder_attention_heads", "num_key_value_heads")
_REST: dict[str, Any] = {
    "max_position_embeddings": 520,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
    "mask_token_id": 3,
    "decoder_start_token_id": 0,
    "forced_eos_token_id": None,
    "encoder_layerdrop": 0.0,
    "decoder_layerdrop": 0.0,
}
