"""A file from a bucket: told in words where nothing can read it, fetched where something can."""

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from studio.data_sources import FetchLimits
from studio.errors import InvalidError, NotFoundError, StudioError, UnavailableError
from studio.runner.sources import s3
from studio.settings import Settings
from tests.fakes.file_server import FileServer
from tests.fakes.s3_signature import SignatureCheck

ROWS = b"prompt,completion\n" + b"a,b\n" * 2000
LIMITS = FetchLimits(bytes=10**6, row_bytes=1000)


def fetch(settings: Settings, folder: Path, url: str) -> tuple[Path, str, dict[str, Any]]:
    return s3.fetch(url, LIMITS, settings, folder, lambda _phase, _share: None)


@pytest.fixture
def bucket(site: FileServer, settings: Settings) -> Settings:
    """Set up a server that answers as S3 does to whom it lets in without keys."""
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    site.put("/bucket/rows.csv", ROWS)
    site.put("/bucket/closed.csv", ROWS, status=403)
    return settings.model_copy(update={"s3_endpoint": site.url})


def test_missing_s3fs_error_gives_install_command(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UnavailableError) as refused:
        fetch(settings, tmp_path, "s3://bucket/rows.csv")

    assert refused.value.hint == "Install it: pip install 'mantissa-studio[s3]'"


def test_file_is_downloaded_with_etag(bucket: Settings, tmp_path: Path) -> None:
    path, filename, facts = fetch(bucket, tmp_path, "s3://bucket/rows.csv")

    assert (path.read_bytes() == ROWS, filename, facts) == (True, "rows.csv", {"etag": "first"})


@pytest.mark.parametrize(
    ("key", "kind", "says"),
    [
        ("missing.csv", NotFoundError, "There is no file s3://bucket/missing.csv."),
        (
            "closed.csv",
            StudioError,
            "The studio's keys do not give access to s3://bucket/closed.csv.",
        ),
    ],
)
def test_unavailable_s3_file_error_has_clear_message(
    bucket: Settings, tmp_path: Path, key: str, kind: type[StudioError], says: str
) -> None:
    with pytest.raises(kind) as refused:
        fetch(bucket, tmp_path, f"s3://bucket/{key}")

    assert refused.value.message == says


def with_keys(settings: Settings, key: str, secret: str) -> Settings:
    given = {"s3_key": SecretStr(key), "s3_secret": SecretStr(secret)}
    return settings.model_copy(update=given)


def test_signed_requests_access_private_bucket(
    bucket: Settings, site: FileServer, tmp_path: Path
) -> None:
    site.check = SignatureCheck("AKIAEXAMPLE", "right")
    site.put("/bucket/of%202026/gr%C3%B6%C3%9Fe%2B1.csv", ROWS)
    ours = with_keys(bucket, "AKIAEXAMPLE", "right")

    for url in ("s3://bucket/rows.csv", "s3://bucket/of 2026/größe+1.csv"):
        assert fetch(ours, tmp_path, url)[0].read_bytes() == ROWS
        (tmp_path / "fetched").unlink()


@pytest.mark.parametrize(
    ("key", "secret", "says"),
    [
        (
            "AKIAEXAMPLE",
            "wrong",
            "The studio's secret key does not match its access key.",
        ),
        ("AKIAOTHER", "right", "S3 does not know the studio's access key."),
        ("", "", "The studio's keys do not give access to s3://bucket/rows.csv."),
    ],
    ids=["wrong secret", "another key", "no key"],
)
def test_invalid_s3_keys_error_names_cause(
    bucket: Settings, site: FileServer, tmp_path: Path, key: str, secret: str, says: str
) -> None:
    site.check = SignatureCheck("AKIAEXAMPLE", "right")
    with pytest.raises(InvalidError) as refused:
        fetch(with_keys(bucket, key, secret), tmp_path, "s3://bucket/rows.csv")

    assert (refused.value.message, site.asked) == (says, [])
    assert "Settings, Secrets" in refused.value.hint
