"""What a format of exports does: the one seam between the export and its formats."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from transformers import PreTrainedModel

from studio.recipe.exports import EXPORT_FORMATS, ExportKind
from studio.training.evaluation.perplexity import Perplexity


class FormatWriter(Protocol):
    """Writes one export. Made once for each, before anything is loaded."""

    def refuse(self) -> None:
        """Raise a StudioError if the model cannot be exported so, before it is measured."""

    def write(self, partial: Path, done: Callable[[float], None]) -> dict[str, float]:
        """Write all files, and return what changed; `done` receives the share written so far."""

    def load(self, partial: Path) -> PreTrainedModel:
        """Load the model from its files, as a user would."""

    def verify(
        self, partial: Path, before: Perplexity | None, after: Perplexity | None
    ) -> dict[str, Any]:
        """Compare the files with the run, and return what the report says of it.

        Raises:
            StudioError: they differ by more than the format explains.

        """


def writer_class(kind: ExportKind) -> Callable[[Any], FormatWriter]:
    """Return the class that writes a format, which is made with the `Exporter`."""
    module, _, name = EXPORT_FORMATS[kind].writer.partition(":")
    writer: Callable[[Any], FormatWriter] = getattr(import_module(module), name)
    return writer
