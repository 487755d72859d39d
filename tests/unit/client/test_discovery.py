"""Where the client finds the studio, and what it says of itself."""

import subprocess
import sys
from pathlib import Path

import pytest

from studio.client import transports


def test_base_url_defaults_to_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STUDIO_URL", raising=False)

    assert transports.resolve_settings(None, None).base_url == "http://127.0.0.1:8000/api/v1"


def test_arguments_override_environment_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STUDIO_URL", "https://studio.example.org/")
    monkeypatch.setenv("STUDIO_TOKEN", "mine")
    found, told = (
        transports.resolve_settings(None, None),
        transports.resolve_settings("http://localhost:1", "other"),
    )

    assert (found.base_url, found.headers) == (
        "https://studio.example.org/api/v1",
        {"Authorization": "Bearer mine"},
    )
    assert (told.base_url, told.headers) == (
        "http://localhost:1/api/v1",
        {"Authorization": "Bearer other"},
    )


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1:8000", {"Authorization": "Bearer kept"}),
        ("https://elsewhere.example.org", {}),
    ],
)
def test_local_api_token_is_sent_only_to_local_urls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str, headers: dict[str, str]
) -> None:
    monkeypatch.delenv("STUDIO_TOKEN", raising=False)
    monkeypatch.setenv("STUDIO_HOME", str(tmp_path))
    (tmp_path / "api_token").write_text("kept\n")

    assert transports.resolve_settings(url, None).headers == headers


@pytest.mark.parametrize("module", ["studio.client", "studio.cli"])
def test_client_modules_import_no_heavy_dependencies(module: str) -> None:
    heavy = ("torch", "fastapi", "starlette", "sqlalchemy", "sqlmodel", "optuna", "pyarrow")
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
