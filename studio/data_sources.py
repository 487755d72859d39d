"""The sources that data can be imported from."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from studio.errors import InvalidError
from studio.schemas.field_docs import FieldDocs
from studio.starter.samples import SampleName

REPO_ID = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
"""The format of repository IDs on the hub: `owner/name`."""


S3_URL = r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,254}/\S.*"
"""The bucket becomes part of a host name, so only characters of host names are allowed."""


class _Source(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _strip(text: str) -> str:
    return text.strip()


ShortText = Annotated[str, AfterValidator(_strip), Field(max_length=4000)]


class LocalFileSource(_Source):
    """A file in one of the folders that the operator opened with `STUDIO_IMPORT_FOLDERS`."""

    kind: Literal["path"] = "path"
    path: ShortText

    @property
    def display_name(self) -> str:
        return self.path


class UrlSource(_Source):
    """A file at a URL."""

    kind: Literal["url"] = "url"
    url: ShortText

    @property
    def display_name(self) -> str:
        """The URL without parts that may be secret: user info, query and fragment."""
        return re.sub(r"//[^/@]*@", "//", self.url).partition("?")[0].partition("#")[0]


class HubDatasetSource(_Source):
    """A dataset on the Hugging Face hub or a mirror."""

    kind: Literal["hub"] = "hub"
    id: ShortText
    """owner/name"""
    config: ShortText = ""
    """The config (subset); empty means the default or the only one."""
    split: ShortText = ""
    """The split; empty means train, with validation (or else test) for validation."""
    revision: ShortText = ""
    """A branch, tag or commit; empty means the newest."""

    @property
    def display_name(self) -> str:
        return f"hub:{self.id}"


class S3Source(_Source):
    """A file in a bucket of S3 or a compatible service, whose endpoint the operator sets."""

    kind: Literal["s3"] = "s3"
    url: ShortText
    """s3://bucket/key"""

    @property
    def display_name(self) -> str:
        return self.url


class SampleSource(_Source):
    """One of the samples that the studio includes."""

    kind: Literal["sample"] = "sample"
    id: SampleName

    @property
    def display_name(self) -> str:
        return "sample"


class UploadSource(_Source):
    """A large file that was uploaded in parts and is complete."""

    kind: Literal["upload"] = "upload"
    upload: ShortText
    """The upload ID that was issued before the first part."""

    @property
    def display_name(self) -> str:
        return "upload"


Source = Annotated[
    LocalFileSource | UrlSource | HubDatasetSource | S3Source | SampleSource | UploadSource,
    Field(discriminator="kind"),
]
SOURCE_ADAPTER: TypeAdapter[Source] = TypeAdapter(Source)


def resolve_inside(folders: Sequence[Path], path: str) -> Path:
    """Resolve a path that must be inside one of the folders.

    Raises:
        InvalidError: it leads outside through `..` or links, or does not exist.

    """
    try:
        real = Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        real = None
    if real is None or not any(real.is_relative_to(folder.resolve()) for folder in folders):
        # The same error for both cases, so that it does not reveal which files exist outside.
        raise InvalidError(
            "No such file in the folders that are open for import.",
            hint="The operator opens folders with STUDIO_IMPORT_FOLDERS.",
            param="path",
        )
    return real


class FetchLimits(BaseModel):
    """The limits of a fetch, as handed to the process that does it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    row_bytes: int
    """The longest row allowed; files with longer rows are rejected."""
    seconds: float = 12 * 3600.0
    """For the whole fetch, including interruptions."""


class FetchRequest(BaseModel):
    """The parameters of a `fetch` task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Source
    home: Path
    """The folder of the datasets."""
    about: str = ""
    """The source, for display."""
    name: str = ""
    """The name of the dataset; empty means the file name."""
    limits: FetchLimits


class FetchResult(BaseModel):
    """The result of a `fetch` task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """The file's name in the task's folder."""
    filename: str
    """The file's name at its source."""
    bytes: int
    sha256: str
    arrival: dict[str, Any]
    """The detected format: a `studio.intake.conversion.job.DetectionResult`."""
    facts: dict[str, Any] = {}
    """Other facts about the source, such as the hub commit or the URL after redirects."""
