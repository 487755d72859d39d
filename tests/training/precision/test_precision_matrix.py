"""Every precision with every family, in full and beside every frozen base: one table says all.

A cell goes the product's own way: the recipe, the refusals before the start, the runner.
"""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from transformers import (
    Gemma3TextConfig,
    LlamaConfig,
    MambaConfig,
    PreTrainedConfig,
    Qwen3Config,
    RwkvConfig,
)

from studio import hardware
from studio.methods import RECIPE_ADAPTER
from studio.protocols.events import Finished, Started
from studio.recipe import yaml
from studio.recipe.adapters import Lora
from studio.recipe.precision import PRECISIONS
from studio.services.precision import recommendation
from studio.services.precision.incompatibilities import check
from tests.support.covering import covering
from tests.training import tiny
from tests.training.models.test_families import SIZE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="the table is that of processors"),
]

# What is asked for                    What comes of it
# weights   kept in    precision         llama     qwen3     gemma3    mamba     rwkv
TABLE = """
  full      -          bf16              trains    trains    trains    trains    trains
  full      -          fp16              trains    trains    overflow  trains    trains
  full      -          fp32              trains    trains    trains    trains    trains
  full      -          fp32_tf32         no-gpu    no-gpu    no-gpu    no-gpu    no-gpu
  full      -          fp32_bf16_matmul  trains    trains    trains    trains    trains
  full      -          bf16_dual         trains    trains    trains    trains    trains
  full      -          bf16_pure         trains    trains    trains    trains    trains
  full      -          bf16_stochastic   trains    trains    trains    trains    trains
  full      -          bf16_kahan        trains    trains    trains    trains    trains
  full      -          fp8               trains    trains    trains    odd       trains
  lora      native     bf16              trains    trains    trains    trains    trains
  lora      float32    bf16              trains    trains    trains    trains    trains
  lora      bfloat16   bf16              trains    trains    trains    trains    trains
  lora      float16    bf16              trains    trains    trains    trains    clash
  lora      native     fp16              trains    trains    overflow  trains    clash
  lora      float32    fp16              trains    trains    overflow  trains    trains
  lora      bfloat16   fp16              trains    trains    overflow  trains    clash
  lora      float16    fp16              trains    trains    overflow  trains    trains
  lora      native     fp32              trains    trains    trains    trains    trains
  lora      float32    fp32              trains    trains    trains    trains    trains
  lora      bfloat16   fp32              uncast    uncast    uncast    uncast    uncast
  lora      float16    fp32              uncast    uncast    uncast    uncast    uncast
  lora      native     fp32_tf32         no-gpu    no-gpu    no-gpu    no-gpu    no-gpu
  lora      float32    fp32_tf32         no-gpu    no-gpu    no-gpu    no-gpu    no-gpu
  lora      bfloat16   fp32_tf32         uncast    uncast    uncast    uncast    uncast
  lora      float16    fp32_tf32         uncast    uncast    uncast    uncast    uncast
  lora      native     fp32_bf16_matmul  trains    trains    trains    trains    trains
  lora      float32    fp32_bf16_matmul  trains    trains    trains    trains    trains
  lora      bfloat16   fp32_bf16_matmul  uncast    uncast    uncast    uncast    uncast
  lora      float16    fp32_bf16_matmul  uncast    uncast    uncast    uncast    uncast
  lora      int8       bf16              trains    trains    trains    packed    trains
  lora      int8       fp16              trains    trains    overflow  packed    trains
  lora      int8       fp32              trains    trains    trains    packed    trains
  lora      int8       fp32_tf32         dense     dense     dense     dense     dense
  lora      int8       fp32_bf16_matmul  dense     dense     dense     dense     dense
  lora      nf4        bf16              trains    trains    trains    packed    trains
  lora      nf4        fp16              trains    trains    overflow  packed    trains
  lora      nf4        fp32              trains    trains    trains    packed    trains
  lora      nf4        fp32_tf32         dense     dense     dense     dense     dense
  lora      nf4        fp32_bf16_matmul  dense     dense     dense     dense     dense
  lora      any        bf16_dual         rounds    rounds    rounds    rounds    rounds
  lora      any        bf16_pure         rounds    rounds    rounds    rounds    rounds
  lora      any        bf16_stochastic   rounds    rounds    rounds    rounds    rounds
  lora      any        bf16_kahan        rounds    rounds    rounds    rounds    rounds
  lora      any        fp8               rounds    rounds    rounds    rounds    rounds
"""
REFUSED = {
    "no-gpu": "TF32 products cannot be used here: it needs an NVIDIA GPU, Ampere or newer",
    "overflow": "models do not train in float16: its activations reach about 800,000",
    "clash": "rwkv models cannot compute in",
    "uncast": "A frozen model in",
    "rounds": "sets the format of trained weights; an adapter's are float32.",
    "packed": "mamba models read weights without going through their layers",
    "dense": "changes products of float32 weights",
    "odd": "8-bit products need layers whose dimensions are multiples of 16",
}
"""Why a cell is refused before the start: a part of the sentence."""

STOPPED = {
    "no-gpu": "this model would train differently: matmul should be tf32 and is float32.",
    "clash": "Two number formats were mixed where this model allows only one.",
    "uncast": REFUSED["uncast"],
    "rounds": REFUSED["rounds"],
    "dense": REFUSED["dense"],
    "odd": REFUSED["odd"],
}
"""How the runner ends what is refused, if it comes there all the same.

Whether the activations of `overflow` do overflow, the weights decide: those of a tiny model do not.
"""

FAMILIES: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZE),
    "qwen3": Qwen3Config(**SIZE),
    "gemma3": Gemma3TextConfig(**SIZE, query_pre_attn_scalar=16),
    "mamba": MambaConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, state_size=8),
    "rwkv": RwkvConfig(vocab_size=320, hidden_size=32, num_hidden_layers=2, context_length=128),
}
BASES: tuple[str, ...] = get_args(Lora.model_fields["base_dtype"].annotation)

Cell = tuple[str, str, str, str]
"""Weights, kept in, precision, family."""


def _cells() -> dict[Cell, str]:
    cells = {}
    for kind, base, mode, *outcomes in map(str.split, TABLE.strip().splitlines()):
        bases = BASES if base == "any" else (base,)
        for one, (family, outcome) in product(bases, zip(FAMILIES, outcomes, strict=True)):
            cells[kind, one, mode, family] = outcome
    return cells


CELLS = _cells()
TRAINED = [cell for cell, outcome in CELLS.items() if outcome == "trains"]
REFUSABLE = [cell for cell, outcome in CELLS.items() if outcome != "trains"]
STOPPABLE = [cell for cell in REFUSABLE if CELLS[cell] in STOPPED]

OVERFLOWS_WHEN_EMULATED = ("lora", "int8", "fp16", "rwkv")
"""Trains where 16-bit products are native; elsewhere its losses are NaN."""

ModelOf = Callable[[str], Path]


@pytest.fixture(scope="session")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> ModelOf:
    """Make models as most are saved: in bfloat16. Each is made once."""
    root = tmp_path_factory.mktemp("families")

    def made(family: str) -> Path:
        folder = root / family
        if not folder.exists():
            config = FAMILIES[family]
            config.dtype = torch.bfloat16
            tiny.write_model(folder, config)
        return folder

    return made


def changes(cell: Cell) -> dict[str, Any]:
    kind, base, mode, _family = cell
    kept = {} if base == "-" else {"adapter__base_dtype": base}
    return {"precision": mode, "adapter__kind": kind, **kept}


def name(cell: Cell) -> str:
    return "-".join(cell)


def aspects(cell: Cell) -> list[object]:
    """Train on each push every row of the table once, and every family in full and with LoRA."""
    kind, base, mode, family = cell
    return [(kind, base, mode), (kind, family), family]


def reasons(cell: Cell) -> list[object]:
    """Stop on each push for every reason in every precision, and every family once."""
    return [(CELLS[cell], cell[2]), cell[3]]


def test_matrix_covers_every_mode_and_base() -> None:
    full = {("full", "-", mode) for mode in PRECISIONS}
    lora = {("lora", base, mode) for base in BASES for mode in PRECISIONS}

    assert {cell[:3] for cell in CELLS} == full | lora


@pytest.mark.parametrize("cell", covering(TRAINED, aspects), ids=name)
def test_supported_combinations_train_as_planned(
    cell: Cell, model_of: ModelOf, tmp_path: Path
) -> None:
    if cell == OVERFLOWS_WHEN_EMULATED and not hardware.detect().native_bf16:
        pytest.skip("RWKV overflows float16 beside an int8 base on a processor without AVX-512.")
    run = tiny.train(tmp_path / "run", model_of(cell[-1]), **changes(cell))

    assert isinstance(tiny.last_event(run), Finished), tiny.last_event(run)
    resolved = tiny.events_of(run, Started)[0].resolved
    assert {name: resolved["audit"][name] for name in resolved["plan"]} == resolved["plan"]
    losses = tiny.metric_values(run, "eval_loss")
    assert losses[-1] < losses[0]
    assert told(cell, model_of, tmp_path) == []


@pytest.mark.parametrize("cell", REFUSABLE, ids=name)
def test_unsupported_combinations_are_rejected_before_start(
    cell: Cell, model_of: ModelOf, tmp_path: Path
) -> None:
    assert any(REFUSED[CELLS[cell]] in message for message in told(cell, model_of, tmp_path))


@pytest.mark.parametrize("cell", covering(STOPPABLE, reasons), ids=name)
def test_combinations_detected_only_at_runtime_fail_run(
    cell: Cell, model_of: ModelOf, tmp_path: Path
) -> None:
    run = tiny.train(tmp_path / "run", model_of(cell[-1]), **changes(cell))

    ended = tiny.last_event(run)
    assert (ended.kind, STOPPED[CELLS[cell]] in getattr(ended, "message", "")) == ("failed", True)


def told(cell: Cell, model_of: ModelOf, tmp_path: Path) -> list[str]:
    """Return what the studio says against a cell before it starts."""
    written = tiny.write_run(tmp_path / "asked", model_of(cell[-1]), **changes(cell))
    recipe = RECIPE_ADAPTER.validate_python(yaml.load(written.recipe.read_text()), strict=False)
    facts = recommendation.read_model_facts(model_of(cell[-1]))
    return [refusal.message for refusal in check(recipe, facts, hardware.detect())]
