"""What can be exported from a trained model: which weights, in which format."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from studio.recipe.adapters import AnyAdapter, FullFineTune
from studio.recipe.precision import DType

ExportKind = Literal["full", "merged", "merged_original", "adapter"]
"""`full`: every weight of a full fine-tune. `merged`: the adapter merged into the base it was
trained with (rounded or dequantised). `merged_original`: merged into the base as saved, which is a
different model. `adapter`: the adapter alone."""


class ExportSpec(BaseModel):
    """An export, as handed to the process that writes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path
    """The folder of the run."""
    kind: ExportKind
    dtype: DType


def export_kinds(adapter: AnyAdapter) -> tuple[ExportKind, ...]:
    """Return what can be exported from a run, the most useful first."""
    if isinstance(adapter, FullFineTune):
        return ("full",)
    is_as_saved = adapter.base_dtype in ("native", "float32")
    return ("merged", "adapter") if is_as_saved else ("merged", "merged_original", "adapter")
