"""A run whose chat can be opened: its files, and a service that reads its tokenizer."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio.db.session import unit_of_work
from studio.db.tables import Run
from studio.protocols.run_dir import JobSpec, RunDir
from studio.settings import Settings
from tests.support import factories, tokenizer_services


@pytest.fixture(scope="module")
def tokenizer_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("desk")
    tokenizer_services.write_model(home / "base")
    tokenizer_services.write_model(home / "plain", template="")
    with tokenizer_services.run_tokenizer_service(Settings(home=home)):
        yield home


@pytest.fixture
def base(settings: Settings, tokenizer_home: Path) -> Path:
    """Let the test's home have a tokenizer service; return a base model with a chat template."""
    (settings.home / "desk.sock").symlink_to(tokenizer_home / "desk.sock")
    return tokenizer_home / "base"


def write_files(settings: Settings, run: Run, base: Path, *steps: int) -> RunDir:
    """Write the files of a run: how it was launched, and its checkpoints."""
    folder = RunDir(settings.runs / str(run.id))
    folder.root.mkdir(parents=True)
    spec = JobSpec(
        run_id=run.id or 0, name=run.name, model=str(base), train=folder.root, validation=None
    )
    folder.job.write_text(spec.model_dump_json())
    for step in steps:
        (folder.checkpoints / f"checkpoint-{step}").mkdir(parents=True)
    return folder


@pytest.fixture
def run(engine: Engine, settings: Settings, base: Path) -> RunDir:
    """Make a finished LoRA run with its adapter, and let a worker be connected."""
    with unit_of_work(engine) as db:
        factories.connect_worker(db, "plain")
        folder = write_files(settings, factories.make_finished_run(db), base, 5)
    tokenizer_services.write_model(folder.artifacts)
    return folder
