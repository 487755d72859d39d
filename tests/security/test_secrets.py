"""Secrets: on no page, in no log, in no process that has no need of them, in no open file."""

import json
import logging
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from studio import logs, redaction
from studio.protocols.tasks import TASK_DEFINITIONS
from studio.services.runs import artifacts
from studio.settings import SECRETS, Settings
from studio.worker.processes import process
from tests.security.raw_requests import Target

pytestmark = pytest.mark.smoke

WORD = st.from_regex(r"[A-Za-z0-9]{20,40}", fullmatch=True).map(str)
SHAPES = st.sampled_from(
    [
        "hf_{}",
        "Authorization: Bearer {}",
        "https://ann:{}@hub.example/x",
        "https://s3.example/x?token={}&a=1",
        "https://hooks.example/x?a=1&signature={}",
        "whsec_{}",
        "postgresql://studio:{}@db/x",
        "sft_1_{}" + "x" * 43,
    ]
)
AROUND = st.text(st.characters(codec="ascii", categories=["L", "Zs"]), max_size=20)


@settings(max_examples=50, deadline=None)
@given(before=AROUND, shape=SHAPES, word=WORD, after=AROUND)
def test_text_shaped_like_secret_is_redacted_in_logs(
    before: str, shape: str, word: str, after: str
) -> None:
    word = word[:43] if shape.startswith("sft") else word
    shape = "sft_1_{}" + "x" * (43 - len(word)) if shape.startswith("sft") else shape
    line = f"{before} {shape.format(word)} {after}"
    record = logging.makeLogRecord({"msg": "said", "line": line})

    assert word not in artifacts.clean_line(line.encode())
    assert word not in logs._TerminalFormatter().format(record)
    assert word not in json.loads(logs._JsonFormatter("web").format(record))["line"]


@pytest.mark.parametrize(
    "line",
    ["step 3/10 loss=0.5 lr=2e-4", "http://127.0.0.1:8000/runs/3?q=token:5", "C:/a b@c", "é" * 50],
)
def test_redaction_keeps_ordinary_lines_unchanged(line: str) -> None:
    assert redaction.redact(line) == line


def test_registered_secrets_are_redacted() -> None:
    redaction.register_secrets(["my own pass phrase", "a"])

    assert redaction.redact("not my own pass phrase, a") == "not ***, a"


def test_tracebacks_contain_no_secret() -> None:
    error = OSError("https://ann:verysecret1@hub.example is away")
    record = logging.makeLogRecord({"msg": "failed", "exc_info": (OSError, error, None)})

    assert "verysecret1" not in logs._JsonFormatter("web").format(record)
    assert "verysecret1" not in logs._TerminalFormatter().format(record)


ALL = (*SECRETS, "database", "secret_key", "ray_token")


def secret_ones() -> Settings:
    return Settings(
        **{name: f"hushhush {name}" for name in ALL},  # type: ignore[arg-type] # texts become secrets
        home=Path("nowhere"),
    )


def test_every_secret_setting_is_masked() -> None:
    told = secret_ones()

    hidden = {
        name for name, field in Settings.model_fields.items() if field.annotation is SecretStr
    }
    assert hidden == set(ALL)
    assert "hushhush" not in repr(told)
    assert "hushhush" not in str(told.model_dump())


def test_training_environment_contains_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(f"STUDIO_{name.upper()}" for name in ALL), "HF_TOKEN", "studio_smtp_url"):
        monkeypatch.setenv(name, "hushhush")

    assert "hushhush" not in process.environment(None).values()


def test_settings_environment_contains_no_secret() -> None:
    assert "hushhush" not in str(secret_ones().environment)


@pytest.mark.parametrize(
    ("kind", "source", "names"),
    [
        ("fetch", "hub", {"STUDIO_HUB_TOKEN"}),
        ("fetch", "s3", {"STUDIO_S3_KEY", "STUDIO_S3_SECRET"}),
        ("fetch", "url", set()),
        ("look", "", set()),
    ],
)
def test_task_receives_only_secrets_of_its_source(kind: str, source: str, names: set[str]) -> None:
    needed = TASK_DEFINITIONS[kind].required_secrets({"source": {"kind": source}})

    assert set(secret_ones().secret_environment(needed)) == names


TELLING = (
    *("/settings", "/settings/secrets", "/models"),
    *("/api/v1/deliveries", "/api/v1/secrets"),
)


def test_pages_show_no_secret(place: Target) -> None:
    app = place.app
    kept = app.state.settings
    app.state.settings = kept.model_copy(
        update={name: getattr(secret_ones(), name) for name in ALL}
    )
    try:
        pages = [place.client.get(path) for path in TELLING]
    finally:
        app.state.settings = kept

    shown = [one.text for one in pages if "hushhush" in one.text or quote("hushhush ") in one.text]
    assert shown == []


MAKE = """
import sys
from pathlib import Path
from studio.commands import login_link
from studio.services.operations import home
from studio.settings import Settings
login_link.restrict_umask()
for folder in sys.argv[1:]:
    settings = Settings(home=Path(folder), sign_in="link")
    engine = home.open_home(settings)
    login_link.prepare_sign_in(engine, settings, "http://127.0.0.1:8000/")
    engine.dispose()
"""


def test_new_homes_have_unique_tokens_and_private_files(tmp_path: Path) -> None:
    homes = [tmp_path / "one", tmp_path / "two"]
    subprocess.run([sys.executable, "-c", MAKE, *map(str, homes)], check=True, umask=0o022)
    kept = [path for home in homes for path in [home, *home.rglob("*")]]

    tokens = {(home / "api_token").read_text() for home in homes}
    assert len(tokens) == 2
    assert [str(path) for path in kept if stat.S_IMODE(path.stat().st_mode) & 0o077] == []
