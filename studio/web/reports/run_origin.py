"""What a run was made from, for its report: data, model, machine and versions."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from studio.db.tables import Run
from studio.protocols.run_dir import DatasetFacts
from studio.run_manifest import Manifest
from studio.web.i18n import formatting, number_i18n
from studio.web.reports.report_parts import shorten

MAX_FILES = 8
"""Weight files whose checksums are listed."""
MAX_VERSIONS = 40
MAX_VALUE = 200

Fact = tuple[str, str]
"""A name and its value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrigin:
    data: list[Fact]
    """Empty if the rows have been deleted."""
    data_checksums: list[Fact]
    model: list[Fact]
    model_checksums: list[Fact]
    more_checksums: int
    """How many files are not listed."""
    machine: list[Fact]
    versions: list[Fact]
    is_finished: bool
    """Whether the run has written its manifest, with the checksums of its model."""


def describe_origin(run: Run, manifest: Manifest) -> RunOrigin:
    """Return what a run was made from, as far as it is known."""
    data, model = manifest.dataset, manifest.base_model
    files = list(islice(model.sha256.items(), MAX_FILES))
    return RunOrigin(
        data=_known(_data_facts(data, run.resolved)) if data else [],
        data_checksums=_known([("File SHA-256", data.sha256), ("Rows SHA-256", data.rows_sha256)])
        if data
        else [],
        model=_known(_model_facts(manifest, run.resolved)),
        model_checksums=_known(files),
        more_checksums=len(model.sha256) - len(files),
        machine=_known(_machine_facts(run, manifest)),
        versions=_known(list(manifest.versions.items())[:MAX_VERSIONS]),
        is_finished=manifest.is_finished,
    )


def _known(facts: list[Fact] | Iterator[Fact]) -> list[Fact]:
    return [(shorten(name, MAX_VALUE), shorten(value, MAX_VALUE)) for name, value in facts if value]


def _data_facts(data: DatasetFacts, resolved: Mapping[str, Any]) -> Iterator[Fact]:
    yield "Name", data.name
    yield "Version", str(data.version)
    yield "Training rows", formatting.number(resolved.get("train_rows", data.train_rows))
    held_out = resolved.get("validation_rows", data.validation_rows)
    yield "Validation rows", formatting.number(held_out)


def _model_facts(manifest: Manifest, resolved: Mapping[str, Any]) -> Iterator[Fact]:
    yield "Name", manifest.base_model.name
    yield "Revision", manifest.base_model.revision
    for name, key in (("Parameters", "parameters"), ("Trained parameters", "trainable_parameters")):
        yield name, formatting.count(resolved[key]) if key in resolved else ""
    yield "Teacher", manifest.teacher.name if manifest.teacher else ""


def _machine_facts(run: Run, manifest: Manifest) -> Iterator[Fact]:
    yield "Device", manifest.hardware.get("device_name", "")
    yield "Type", manifest.hardware.get("device", "")
    yield "Seed", str(manifest.seed)
    yield "Attempts", str(run.attempt or "")
    moments = (
        ("Created", run.created_at),
        ("Started", run.started_at),
        ("Finished", run.finished_at),
    )
    for name, moment in moments:
        yield name, number_i18n.format_datetime_full(moment) if moment else ""
