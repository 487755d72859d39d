"""The included base model: its files, and how they reach a home."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
from sqlalchemy import Engine

from studio import starter
from studio.db.session import open_database, read_session, unit_of_work
from studio.services.models import models, starter_model
from studio.services.operations import home
from studio.settings import Settings
from tests.tools.starter import build

MOST_BYTES = 4_000_000


def tensors(content: bytes) -> dict[str, tuple[str, bytes]]:
    """Return each tensor's format and bytes."""
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    return {
        name: (entry["dtype"], content[start:][slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def test_included_content_is_small() -> None:
    files = [path for path in starter.MODEL.parent.rglob("*") if "__pycache__" not in path.parts]

    assert sum(path.stat().st_size for path in files if path.is_file()) < MOST_BYTES


def test_weights_are_those_that_were_built() -> None:
    weights = hashlib.sha256((starter.MODEL / starter.WEIGHTS).read_bytes()).hexdigest()

    assert f"{weights}  {starter.WEIGHTS}" in build.FINGERPRINT.read_text("utf-8")


def test_written_weights_are_float32_with_the_same_values(tmp_path: Path) -> None:
    starter.write_model(tmp_path)

    shipped = tensors((starter.MODEL / starter.WEIGHTS).read_bytes())
    written = tensors((tmp_path / starter.WEIGHTS).read_bytes())
    assert {dtype for dtype, _ in shipped.values()} == {"BF16"}
    assert {dtype for dtype, _ in written.values()} == {"F32"}
    assert written.keys() == shipped.keys()
    for name, (_dtype, narrow) in shipped.items():
        upper_halves = struct.unpack(f"<{len(narrow) // 2}H", narrow)
        values = struct.unpack(f"<{len(narrow) // 2}I", written[name][1])
        assert values == tuple(half << 16 for half in upper_halves)


@pytest.fixture
def fresh(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "fresh")


def install(settings: Settings) -> None:
    engine = home.open_home(settings)
    home.install_starter(engine, settings)
    engine.dispose()


def test_new_home_has_starter_model(fresh: Settings) -> None:
    install(fresh)

    with read_session(open_database(fresh)) as db:
        model = models.find_by_name(db, "starter")
        assert model is not None
        assert model.kind == "starter"
        assert model.facts["parameters"] > 1_000_000
    assert [path.name for path in fresh.models.iterdir()] == ["starter"]


def test_existing_starter_model_is_kept(engine: Engine, settings: Settings) -> None:
    before = (settings.models / "starter" / "config.json").read_bytes()

    home.install_starter(engine, settings)

    assert [path.name for path in (settings.models / "starter").iterdir()] == ["config.json"]
    assert (settings.models / "starter" / "config.json").read_bytes() == before


def test_interrupted_installation_is_completed(fresh: Settings) -> None:
    engine = home.open_home(fresh)
    (fresh.models / ".new-starter").mkdir()
    (fresh.models / ".new-starter" / "model.safetensors").write_bytes(b"half")
    (fresh.models / "starter").mkdir()  # deleted from outside, but for its folder

    with unit_of_work(engine) as db:
        starter_model.ensure(db, fresh.models)
        starter_model.ensure(db, fresh.models)
        listed = [model.name for model in models.newest(db)]
    engine.dispose()

    assert listed == ["starter"]
    assert [path.name for path in fresh.models.iterdir()] == ["starter"]
    assert (fresh.models / "starter" / "tokenizer.json").exists()
