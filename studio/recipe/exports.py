"""What a person can ask for of a trained model: which weights, in which format."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from studio.recipe.adapters import FullFineTune, Lora
from studio.recipe.formats import DType

Kind = Literal["full", "merged", "adapter"]
"""Every weight of a full fine-tune; a base with its adapter folded in; the adapter alone."""


class ExportSpec(BaseModel):
    """An export, as the process that makes it is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: Path
    """The folder of the run."""
    kind: Kind
    dtype: DType


def kinds(adapter: Lora | FullFineTune) -> tuple[Kind, ...]:
    """Return what can be exported of a run, the most useful first."""
    return ("full",) if adapter.kind == "full" else ("merged", "adapter")
