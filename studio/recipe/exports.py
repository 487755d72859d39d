"""What a person can ask for of a trained model: which weights, in which format."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from studio.recipe.adapters import FullFineTune, Lora
from studio.recipe.float_formats import DType

ExportKind = Literal["full", "merged", "merged_original", "adapter"]
"""Every weight of a full fine-tune; the adapter folded into its base as it was trained beside it
(rounded or dequantised); folded into the base as it was saved, which is another model; the adapter
alone."""


class ExportSpec(BaseModel):
    """An export, as the process that makes it is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path
    """The folder of the run."""
    kind: ExportKind
    dtype: DType


def export_kinds(adapter: Lora | FullFineTune) -> tuple[ExportKind, ...]:
    """Return what can be exported of a run, the most useful first."""
    if isinstance(adapter, FullFineTune):
        return ("full",)
    is_as_saved = adapter.base_dtype in ("native", "float32")
    return ("merged", "adapter") if is_as_saved else ("merged", "merged_original", "adapter")
