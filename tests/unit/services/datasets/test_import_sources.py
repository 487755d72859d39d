"""What may be brought from where, before anything is fetched."""

import os
from pathlib import Path

import pytest
from sqlmodel import Session

from studio.data_sources import HubDatasetSource, LocalFileSource, S3Source, Source, UrlSource
from studio.errors import InvalidError, StudioError, UnavailableError
from studio.services.datasets import import_sources
from studio.settings import Settings


@pytest.fixture
def opened(tmp_path: Path) -> Path:
    """Make a folder that may be read, beside one that may not, with links between them."""
    opened, other = tmp_path / "opened", tmp_path / "other"
    (opened / "deeper").mkdir(parents=True)
    other.mkdir()
    (opened / "rows.jsonl").write_text("{}\n")
    (opened / ".hidden").write_text("")
    (other / "secret.jsonl").write_text("{}\n")
    (opened / "out.jsonl").symlink_to(other / "secret.jsonl")
    (opened / "away").symlink_to(other)
    (opened / "in.jsonl").symlink_to(opened / "rows.jsonl")
    return opened


@pytest.fixture
def config(settings: Settings, opened: Path) -> Settings:
    return settings.model_copy(update={"import_folders": (opened,)})


def refused(db: Session, config: Settings, source: Source) -> StudioError:
    with pytest.raises(StudioError) as error:
        import_sources.enqueue_import(db, config, source)
    return error.value


def test_folder_listing_omits_links_to_outside(config: Settings, opened: Path) -> None:
    found = import_sources.list_folder(config, str(opened))

    assert [(one.name, one.size) for one in found] == [
        ("deeper", None),
        ("in.jsonl", 3),
        ("rows.jsonl", 3),
    ]


@pytest.mark.parametrize(
    "path",
    ["out.jsonl", "away/secret.jsonl", "../other/secret.jsonl", "missing", "rows.jsonl\0", "/etc"],
)
def test_path_outside_import_folders_is_reported_as_missing(
    db: Session, config: Settings, opened: Path, path: str
) -> None:
    error = refused(db, config, LocalFileSource(path=os.path.join(opened, path)))  # noqa: PTH118 -- a Path would mend it

    assert error.message == "No such file in the folders that are open for import."


def test_parent_folder_stops_at_allowed_root(config: Settings, opened: Path) -> None:
    ways = [import_sources.parent_folder(config, str(path)) for path in (opened / "deeper", opened)]

    assert ways == [str(opened), ""]


def test_local_import_is_unavailable_without_open_folders(
    db: Session, settings: Settings, opened: Path
) -> None:
    error = refused(db, settings, LocalFileSource(path=str(opened / "rows.jsonl")))

    assert (type(error), error.message) == (UnavailableError, "Folder is not available here.")


@pytest.mark.parametrize(
    "source",
    [
        UrlSource(url="ftp://example.org/rows"),
        UrlSource(url="https://me:secret@example.org/rows"),
        UrlSource(url="rows.jsonl"),
        HubDatasetSource(id="rows"),
        HubDatasetSource(id="../../etc"),
    ],
)
def test_malformed_source_is_rejected(db: Session, settings: Settings, source: Source) -> None:
    assert type(refused(db, settings, source)) is InvalidError


def test_displayed_url_omits_credentials_and_query() -> None:
    shown = UrlSource(url="https://me:secret@example.org/rows.csv?key=secret#secret").display_name

    assert shown == "https://example.org/rows.csv"


def test_duplicate_import_request_reuses_task(db: Session, settings: Settings) -> None:
    first = import_sources.enqueue_import(db, settings, UrlSource(url="https://example.org/rows"))
    second = import_sources.enqueue_import(db, settings, UrlSource(url="https://example.org/rows"))
    other = import_sources.enqueue_import(db, settings, UrlSource(url="https://example.org/others"))

    assert (second.id, other.id) == (first.id, (first.id or 0) + 1)


def test_missing_s3_package_error_gives_install_command(
    db: Session, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    offer = next(one for one in import_sources.list_sources(settings) if one.kind == "s3")
    error = refused(db, settings, S3Source(url="s3://bucket/rows.csv"))

    assert (error.hint, "mantissa-studio[s3]" in offer.missing) == (offer.missing, True)
