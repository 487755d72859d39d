"""Exports that can be served, and a llama-server that a test tells what to do."""

import json
import sys
from pathlib import Path
from typing import Any

from sqlmodel import Session

from studio.db.states import TaskStatus
from studio.db.tasks import Export
from studio.protocols.run_dir import RunDir
from studio.services.endpoints.sources import Source
from studio.services.tasks import tasks
from studio.settings import Settings
from tests.support import evaluated_runs, factories

FAKE = Path(__file__).parents[1] / "fakes" / "llama_server.py"


def write_program(folder: Path) -> Path:
    """Write a program `llama-server` into a folder, to be named in PATH or in a setting."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "llama-server"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    return program


def add(db: Session, settings: Settings, **part: Any) -> Source:  # noqa: ANN401 -- any field of Part
    """Add a run that succeeded with an export as a GGUF file; `part` is what its server does."""
    run = factories.make_finished_run(db)
    folder = evaluated_runs.lay_out(db, settings, run)
    export = Export(run_id=run.id or 0, kind="merged", dtype="float16")
    db.add(export)
    db.flush()
    tasks.start_work(export)
    tasks.close_work(export, TaskStatus.SUCCEEDED)
    play(settings, Source(run_id=run.id or 0, export_id=export.id), **part)
    assert folder.artifacts.is_dir()
    return Source(run_id=run.id or 0, export_id=export.id)


def files(settings: Settings, source: Source) -> Path:
    return RunDir(settings.runs / str(source.run_id)).export(source.export_id or 0).files


def play(settings: Settings, source: Source, **part: Any) -> None:  # noqa: ANN401 -- any field of Part
    """Let the server of an export do something else at its next start."""
    folder = files(settings, source)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.gguf").write_text(json.dumps(part), encoding="utf-8")


def list_requests(settings: Settings, source: Source) -> list[dict[str, Any]]:
    """Return what the server was asked."""
    log = files(settings, source) / "requests.jsonl"
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [json.loads(line) for line in text.splitlines()]
