"""A conversion job: everything needed to convert a file, here or in another process."""

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from studio.intake.conversion.converter import ConversionResult, SourceFile, convert_file
from studio.intake.files.limits import Limits
from studio.intake.files.read_progress import ProgressCallback
from studio.intake.mapping import Mapping
from studio.intake.quality import finding_store

READ_SHARE = 0.7
"""The share of the work after which the rows are written and the data checks begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionJob:
    source: SourceFile
    mapping: Mapping | None
    """None detects it from the file."""
    limits: Limits
    validation: SourceFile | None = None
    """A second file, whose rows are for validation."""

    def write_rows(
        self, folder: Path, on_progress: ProgressCallback = lambda _share: None
    ) -> ConversionResult:
        """Write the rows of the whole file to a folder, with the findings in them.

        Raises:
            InvalidError: the mapping does not fit the file, or no row is left.
            TooLargeError: it unpacks to more than the limit.

        """
        source, limits = self.source, self.limits
        result = convert_file(
            source,
            self.mapping,
            folder,
            limits,
            lambda share: on_progress(READ_SHARE * share),
            self.validation,
        )
        findings = finding_store.check_and_store(
            folder, lambda share: self._report_in_time(on_progress, share)
        )
        return replace(result, findings=findings)

    def _report_in_time(self, on_progress: ProgressCallback, share: float) -> None:
        if self.limits.deadline is not None:
            self.limits.deadline.check()
        on_progress(READ_SHARE + (1 - READ_SHARE) * share)


CONVERSION_JOB_ADAPTER = TypeAdapter(ConversionJob)
CONVERSION_RESULT_ADAPTER = TypeAdapter(ConversionResult)
"""Serialise them between processes."""
