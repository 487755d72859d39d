"""Fetch a dataset from the Hugging Face hub: the files of its splits, at one commit, unchanged.

`datasets` finds out which files these are from the repository's card and file names; none of the
repository's code is ever run. A single file stays as it is; several become one archive.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile

from studio.data_sources import FetchLimits, HubDatasetSource
from studio.errors import InvalidError, NotFoundError, StudioError, UnavailableError
from studio.intake.files.archives import split_from_name
from studio.intake.files.formats import (
    ARCHIVE_EXTENSION,
    EXTENSIONS,
    extension,
    full_extension,
    without_compression,
)
from studio.run_manifest import file_sha256
from studio.runner.execution import ReportProgress
from studio.runner.sources.chunked_file import ChunkWriter
from studio.settings import Settings

READABLE_BUILDERS = frozenset({"json", "csv", "parquet", "arrow", "text"})
"""The `datasets` builders for files that hold rows of text."""

_CARD_FILES = ("README.md", ".huggingface.yaml")
_COMPRESS_LEVEL = 1
"""Compression level for JSON lines: shrinks them to about a fifth in little time."""


def fetch(
    source: HubDatasetSource,
    limits: FetchLimits,
    settings: Settings,
    folder: Path,
    report: ReportProgress,
) -> tuple[Path, str, dict[str, Any]]:
    """Fetch the chosen split; or, if none was chosen, the training split and its validation split.

    Return the file's path, its name, and the commit, configuration and splits.

    Raises:
        StudioError: the dataset is gated or missing, lacks that part, or exceeds the size limit.

    """
    # Both packages read the hub's URL when they are imported.
    os.environ["HF_ENDPOINT"] = settings.hub_endpoint
    os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
    repo = HubDataset(source, settings, folder / "hub")
    report("contacting the hub", None)
    with repo.translated_errors():
        repo.fetch_info()
        repo.refuse_external_files()
        builder = repo.load_builder()
        splits = repo.choose_splits(builder)
        _refuse_unreadable_builder(builder.name)
        files = [file for split_files in splits.values() for file in split_files]
        total = sum(repo.sizes[file] for file in files)
        ChunkWriter(limits, report).check_limit(total)
        paths = repo.download(files, ChunkWriter(limits, report, total))
    facts = {"commit": repo.commit, "config": builder.config.name, "split": " and ".join(splits)}
    if len(files) == 1:
        return paths[files[0]], PurePosixPath(files[0]).name, facts
    fetched = {
        split: [paths[file] for file in split_files] for split, split_files in splits.items()
    }
    with repo.translated_errors():
        target = _build_archive(builder, fetched, limits, folder, report)
    name = "-".join([source.id.rpartition("/")[2], *splits])
    return target, name + ARCHIVE_EXTENSION, facts | {"files": files}


@dataclass(slots=True)
class HubDataset:
    """A dataset repository, at the commit that its revision points to now."""

    source: HubDatasetSource
    settings: Settings
    folder: Path
    commit: str = ""
    gated: bool = False
    sizes: dict[str, int] = field(default_factory=dict)
    sha256s: dict[str, str] = field(default_factory=dict)

    @property
    def token(self) -> str | bool:
        return self.settings.hub_token.get_secret_value() or False

    def fetch_info(self) -> None:
        """Fetch the commit, and the files' sizes and checksums."""
        from huggingface_hub import HfApi  # noqa: PLC0415 -- heavy import

        api = HfApi(endpoint=self.settings.hub_endpoint, token=self.token)
        info = api.dataset_info(
            self.source.id, revision=self.source.revision or None, files_metadata=True
        )
        self.commit, self.gated = info.sha or "", bool(info.gated)
        siblings = info.siblings or []
        self.sizes = {sibling.rfilename: sibling.size or 0 for sibling in siblings}
        self.sha256s = {
            sibling.rfilename: sibling.lfs.sha256 for sibling in siblings if sibling.lfs
        }

    def refuse_external_files(self) -> None:
        """Refuse a card that names files outside its repository, because they would be opened."""
        from huggingface_hub.repocard import RepoCard  # noqa: PLC0415 -- heavy import
        from yaml import safe_load  # noqa: PLC0415 -- heavy import

        for name in _CARD_FILES:
            if name not in self.sizes:
                continue
            text = self._download_file(name).read_text(encoding="utf-8", errors="replace")
            is_card = name.endswith(".md")
            metadata = (
                RepoCard(text, ignore_metadata_errors=True).data if is_card else safe_load(text)
            )
            for path in _strings(metadata.get("configs") or []):
                if "://" in path or "::" in path or path.startswith(("/", "~")) or ".." in path:
                    raise InvalidError(
                        f"{self.source.id} refers to a file outside its repository: {path}."
                    )

    def load_builder(self) -> Any:  # noqa: ANN401 -- datasets is not typed
        """Return the `datasets` builder for the repository, or for the chosen configuration."""
        import datasets  # noqa: PLC0415 -- heavy import

        names: list[str] = datasets.get_dataset_config_names(
            self.source.id, revision=self.commit, token=self.token
        )
        if self.source.config and self.source.config not in names:
            raise _choice_error(
                f"{self.source.id} has no configuration {self.source.config}", names, "config"
            )
        if not self.source.config and len(names) > 1 and "default" not in names:
            raise _choice_error(f"{self.source.id} has several configurations", names, "config")
        return datasets.load_dataset_builder(
            self.source.id,
            self.source.config or None,
            revision=self.commit,
            token=self.token,
        )

    def choose_splits(self, builder: Any) -> dict[str, list[str]]:  # noqa: ANN401 -- of datasets
        """Return the files of the chosen split, or else of the training and validation splits."""
        available = {str(split): list(files) for split, files in builder.config.data_files.items()}
        chosen = self.source.split or ("train" if "train" in available else next(iter(available)))
        if chosen not in available:
            raise _choice_error(f"{self.source.id} has no split {chosen}", list(available), "split")
        validation = "" if self.source.split else _validation_split(list(available), chosen)
        prefix = f"hf://datasets/{self.source.id}@{self.commit}/"
        splits = {
            split: [str(file).removeprefix(prefix) for file in available[split]]
            for split in filter(None, (chosen, validation))
        }
        if not {file for files in splits.values() for file in files} <= self.sizes.keys():
            raise InvalidError(f"{self.source.id} refers to files outside its repository.")
        return splits

    def download(self, files: Sequence[str], writer: ChunkWriter) -> dict[str, Path]:
        """Download files, except those that an earlier attempt has downloaded."""
        paths, done = dict[str, Path](), 0
        for file in files:
            progress_bar = _progress_bar_class(writer, done)
            path = self._download_file(file, progress_bar)
            if file in self.sha256s and file_sha256(path) != self.sha256s[file]:
                path.unlink()
                raise UnavailableError(
                    f"{file} does not match its checksum on the hub.",
                    hint="Try again: the file will be downloaded again.",
                )
            done += self.sizes[file]
            writer.report_progress(done)
            paths[file] = path
        return paths

    def _download_file(self, name: str, bar: Any = None) -> Path:  # noqa: ANN401 -- like a tqdm
        from huggingface_hub import hf_hub_download  # noqa: PLC0415 -- heavy import

        return Path(
            hf_hub_download(
                self.source.id,
                name,
                repo_type="dataset",
                revision=self.commit,
                local_dir=self.folder,
                token=self.token,
                endpoint=self.settings.hub_endpoint,
                tqdm_class=bar,
            )
        )

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Translate errors into the studio's own messages; none of them contains the token."""
        import httpx2  # noqa: PLC0415 -- heavy import
        from datasets.exceptions import DatasetsError  # noqa: PLC0415 -- heavy import
        from huggingface_hub import errors  # noqa: PLC0415 -- heavy import

        try:
            yield
        except errors.GatedRepoError as error:
            raise self._gated_error() from error
        except errors.RevisionNotFoundError as error:
            raise NotFoundError(
                f"{self.source.id} has no revision {self.source.revision}.",
                hint="Leave the revision empty to use the newest one.",
            ) from error
        except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
            raise self._missing_error() from error
        except errors.EntryNotFoundError as error:
            raise NotFoundError(f"{self.source.id} lists a file that does not exist.") from error
        except (errors.HfHubHTTPError, httpx2.TransportError) as error:
            raise UnavailableError(
                f"{self.settings.hub_endpoint} cannot be reached or does not respond.",
                hint="Try again later. The operator sets the hub's URL: STUDIO_HUB_ENDPOINT.",
            ) from error
        except DatasetsError as error:
            raise (
                self._gated_error() if self.gated else _unreadable_error(self.source.id, error)
            ) from error
        except (RuntimeError, ValueError, FileNotFoundError) as error:
            raise _unreadable_error(self.source.id, error) from error

    def _gated_error(self) -> StudioError:
        error = InvalidError(
            f"{self.source.id} is gated: you must accept its terms first.",
            hint=f"Accept its terms at {self.settings.hub_endpoint}/datasets/{self.source.id}. "
            + (
                "The token of this studio does not have access yet."
                if self.token
                else "Then set STUDIO_HUB_TOKEN (or HF_TOKEN) where the studio runs."
            ),
            param="id",
        )
        error.code = "gated_model"
        return error

    def _missing_error(self) -> StudioError:
        advice = "" if self.token else ": then set STUDIO_HUB_TOKEN where the studio runs"
        return NotFoundError(
            f"The hub has no dataset {self.source.id}, or this studio has no access to it.",
            hint=f"Check the spelling. It may be private{advice}.",
        )


def _choice_error(problem: str, names: Sequence[str], param: str) -> InvalidError:
    available = ", ".join(names[:20])
    return InvalidError(f"{problem}.", hint=f"Available: {available}.", param=param)


def _unreadable_error(name: str, error: Exception) -> StudioError:
    if "script" in str(error):
        return InvalidError(
            f"{name} is built by a script, and the studio never runs code from the hub.",
            hint="Look for a copy with data files, such as Parquet.",
        )
    first = (str(error).splitlines() or [type(error).__name__])[0]
    return InvalidError(f"No rows could be read from {name}: {first.rstrip('.')}.")


def _refuse_unreadable_builder(kind: str) -> None:
    if kind not in READABLE_BUILDERS:
        raise InvalidError(
            f"It holds {kind} files, and the studio can only train on rows of text.",
            hint="Supported formats: Parquet, JSON, CSV, Arrow and text.",
        )


def _strings(data: object) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for value in data.values() if isinstance(data, dict) else data:
            yield from _strings(value)


def _progress_bar_class(writer: ChunkWriter, bytes_before: int) -> type:
    """Return a progress bar class for the hub's client that reports downloaded bytes."""

    class Bar:
        def __init__(self, *_given: object, initial: int = 0, **_named: object) -> None:
            self.have = initial

        def update(self, count: float | None = 1) -> None:
            self.have += int(count or 0)
            writer.report_progress(bytes_before + self.have)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_error: object) -> None:
            pass

        def close(self) -> None:
            pass

    return Bar


def _validation_split(splits: Sequence[str], chosen: str) -> str:
    """Return the split to validate with when training on the chosen split, or "".

    A test split is used if there is no validation split.
    """
    if split_from_name(chosen) not in {"train", ""}:
        return ""
    split_names = {split_from_name(split): split for split in reversed(splits)}
    return split_names.get("validation") or split_names.get("test") or ""


def _build_archive(
    builder: Any,  # noqa: ANN401 -- of datasets
    files: Mapping[str, Sequence[Path]],
    limits: FetchLimits,
    folder: Path,
    report: ReportProgress,
) -> Path:
    """Build one archive of the files of each split.

    The files stay unchanged, so that a bad row can be located and the others are kept. If the
    formats differ, `datasets` reads the files and they are written as JSON lines.

    Raises:
        TooLargeError: the rows exceed the size limit.

    """
    report("combining the files", 0.9)
    target = folder / "files.zip"
    if _has_one_format(files):
        with ZipFile(target, "w", ZIP_STORED) as archive:
            for name, path in _archive_names(files):
                archive.write(path, name)
        return target
    builder.config.data_files = {split: list(map(str, paths)) for split, paths in files.items()}
    size_check, size = ChunkWriter(limits, lambda _phase, _share: None), 0
    with ZipFile(target, "w", ZIP_DEFLATED, compresslevel=_COMPRESS_LEVEL) as archive:
        for split in files:
            with archive.open(f"{split}.jsonl", "w", force_zip64=True) as member:
                for line in _json_lines(builder, split):
                    size += len(line)
                    size_check.check_limit(size)
                    member.write(line)
    return target


def _has_one_format(files: Mapping[str, Sequence[Path]]) -> bool:
    names = (path.name for paths in files.values() for path in paths)
    formats = {EXTENSIONS.get(extension(without_compression(name))) for name in names}
    return len(formats) == 1 and None not in formats


def _archive_names(files: Mapping[str, Sequence[Path]]) -> Iterator[tuple[str, Path]]:
    """Name each file for its split alone: its own name may contradict the card."""
    for split, paths in files.items():
        for number, path in enumerate(paths, 1):
            suffix = f"-{number:05}-of-{len(paths):05}" if len(paths) > 1 else ""
            yield f"{split}{suffix}{full_extension(path.name)}", path


def _json_lines(builder: Any, split: str) -> Iterator[bytes]:  # noqa: ANN401 -- of datasets
    for row in builder.as_streaming_dataset(split=split):
        yield (json.dumps(row, ensure_ascii=False, default=str) + "\n").encode()
