"""A file from an address, as a chore fetches it: bounded, guarded, gone on with."""

from pathlib import Path
from typing import Any

import pytest

from studio.data_sources import FetchLimits
from studio.errors import InvalidError, StudioError, TooLargeError, UnavailableError
from studio.runner.sources import http
from studio.runner.sources.http import DownloadRequest
from tests.fakes.file_server import FileServer

ROWS = b'{"prompt": "a", "completion": "b"}\n' * 3000


def fetch(url: str, folder: Path, limit: int = 10**6, **given: Any) -> tuple[Path, str]:  # noqa: ANN401 -- of a wish
    limits = FetchLimits(bytes=limit, row_bytes=1000, seconds=given.pop("seconds", 60))
    allow = given.pop("allow_internal", True)
    wish = DownloadRequest(url, limits, allow_internal=allow, pause=lambda _seconds: None)
    path, filename, _facts = http.fetch(wish, folder, lambda _phase, _share: None)
    return path, filename


def refusal(url: str, folder: Path, **given: Any) -> StudioError:  # noqa: ANN401 -- of a wish
    with pytest.raises(StudioError) as refused:
        fetch(url, folder, **given)
    return refused.value


def test_download_uses_file_name_from_content_disposition(site: FileServer, tmp_path: Path) -> None:
    said = {"Content-Disposition": "attachment; filename*=UTF-8''caf%C3%A9.jsonl"}
    path, filename = fetch(site.put("/get", ROWS, headers=said), tmp_path)

    assert (path.read_bytes() == ROWS, filename) == (True, "café.jsonl")


@pytest.mark.parametrize(
    ("path", "filename"),
    [("/rows.csv?token=1", "rows.csv"), ("/a%20b.json", "a b.json"), ("/get", "get")],
)
def test_file_name_defaults_to_end_of_url(
    site: FileServer, tmp_path: Path, path: str, filename: str
) -> None:
    site.put(path.partition("?")[0], ROWS)

    assert fetch(site.url + path, tmp_path)[1] == filename


def test_interrupted_download_requests_only_remaining_bytes(
    site: FileServer, tmp_path: Path
) -> None:
    path, _ = fetch(site.put("/rows.jsonl", ROWS, cuts=[70_000, 10_000]), tmp_path)

    assert path.read_bytes() == ROWS
    assert [wanted for _, wanted in site.asked] == ["", "bytes=70000-", "bytes=80000-"]


def test_next_attempt_resumes_partial_download(site: FileServer, tmp_path: Path) -> None:
    url = site.put("/rows.jsonl", ROWS, cuts=[5000, *([0] * http.MAX_STALLED_TRIES)])
    error = refusal(url, tmp_path)
    site.asked.clear()
    path, _ = fetch(url, tmp_path)

    assert error.message == f"The download stopped after 5000 of {len(ROWS)} bytes."
    assert (path.read_bytes() == ROWS, site.asked[0][1]) == (True, "bytes=5000-")


@pytest.mark.parametrize("about", [{"takes_ranges": False}, {"tag": ""}])
def test_download_restarts_when_resuming_is_impossible(
    site: FileServer, tmp_path: Path, about: dict[str, Any]
) -> None:
    path, _ = fetch(site.put("/rows.jsonl", ROWS, cuts=[5000], **about), tmp_path)

    assert path.read_bytes() == ROWS


def test_changed_file_is_not_mixed_with_partial_download(site: FileServer, tmp_path: Path) -> None:
    url = site.put("/rows.jsonl", ROWS, cuts=[5000, *([0] * http.MAX_STALLED_TRIES)])
    refusal(url, tmp_path)
    site.put("/rows.jsonl", ROWS.upper(), tag='"second"')

    assert fetch(url, tmp_path)[0].read_bytes() == ROWS.upper()


def test_redirects_are_followed(site: FileServer, tmp_path: Path) -> None:
    site.put("/rows.jsonl", ROWS)
    url = site.put("/old", status=302, headers={"Location": "/rows.jsonl"})

    assert fetch(url, tmp_path)[1] == "rows.jsonl"


def test_endless_redirects_are_rejected(site: FileServer, tmp_path: Path) -> None:
    url = site.put("/old", status=302, headers={"Location": "/old"})

    assert refusal(url, tmp_path).message == "Too many redirects."


def test_internal_address_is_not_requested(site: FileServer, tmp_path: Path) -> None:
    url = site.put("/rows.jsonl", ROWS)

    error = refusal(url, tmp_path, allow_internal=False)
    assert (type(error), site.asked) == (InvalidError, [])


@pytest.mark.parametrize("about", [{}, {"length": -1}])
def test_too_large_download_is_stopped(
    site: FileServer, tmp_path: Path, about: dict[str, Any]
) -> None:
    url = site.put("/rows.jsonl", ROWS, **about)

    assert type(refusal(url, tmp_path, limit=1000)) is TooLargeError
    assert sum(part.stat().st_size for part in tmp_path.glob("*.part")) <= 1000


def test_file_without_content_length_is_fully_downloaded(site: FileServer, tmp_path: Path) -> None:
    path, _ = fetch(site.put("/rows.jsonl", ROWS, length=-1), tmp_path)

    assert path.read_bytes() == ROWS


def test_total_download_time_is_limited(site: FileServer, tmp_path: Path) -> None:
    url = site.put("/rows.jsonl", ROWS, length=len(ROWS) + 1)

    assert type(refusal(url, tmp_path, seconds=0)) is UnavailableError


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"status": 404}, "The requested file does not exist (status 404)."),
        ({"status": 403}, "The requested file is not public (status 403)."),
        ({"status": 503}, "The server responded with status 503."),
        (
            {"headers": {"Content-Type": "text/html; charset=utf-8"}},
            "This URL returns a web page, not a file.",
        ),
    ],
)
def test_non_file_response_is_rejected_with_message(
    site: FileServer, tmp_path: Path, about: dict[str, Any], says: str
) -> None:
    url = site.put("/page", b"<!doctype html>", **about)

    assert refusal(url, tmp_path).message == says


def test_gzip_encoded_response_gets_gz_extension(site: FileServer, tmp_path: Path) -> None:
    url = site.put("/rows.jsonl", ROWS, headers={"Content-Encoding": "gzip"})

    assert fetch(url, tmp_path)[1] == "rows.jsonl.gz"
