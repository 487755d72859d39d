"""Where data can be brought from, as a person or a program names it."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter

from studio.errors import InvalidError
from studio.schemas.field_docs import FieldDocs

REPO_ID = r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}"
"""How the hub spells `owner/name`."""


S3_URL = r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,254}/\S.*"
"""A bucket becomes part of a host's name, so it is spelt as one: nothing leads elsewhere."""


class _Source(FieldDocs, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _strip(text: str) -> str:
    return text.strip()


ShortText = Annotated[str, AfterValidator(_strip), Field(max_length=4000)]


class LocalFileSource(_Source):
    """A file in one of the folders that the operator has opened for this."""

    kind: Literal["path"] = "path"
    path: ShortText

    @property
    def display_name(self) -> str:
        return self.path


class UrlSource(_Source):
    """A file at an address of the web."""

    kind: Literal["url"] = "url"
    url: ShortText

    @property
    def display_name(self) -> str:
        """The address without what may be secret in it: what follows the question mark."""
        return re.sub(r"//[^/@]*@", "//", self.url).partition("?")[0].partition("#")[0]


class HubDatasetSource(_Source):
    """A data set on the Hugging Face hub, or a mirror of it."""

    kind: Literal["hub"] = "hub"
    id: ShortText
    """owner/name"""
    config: ShortText = ""
    """Which of its parts; nothing is the default, or the only one."""
    split: ShortText = ""
    """Which of its splits; nothing is train, measured by validation or else by test."""
    revision: ShortText = ""
    """A branch, a tag or a commit; nothing is the newest."""

    @property
    def display_name(self) -> str:
        return f"hub:{self.id}"


class S3Source(_Source):
    """A file in a bucket of S3, or what is compatible. Where that is, the operator says."""

    kind: Literal["s3"] = "s3"
    url: ShortText
    """s3://bucket/key"""

    @property
    def display_name(self) -> str:
        return self.url


class UploadSource(_Source):
    """A large file that was sent in parts, and has come whole."""

    kind: Literal["upload"] = "upload"
    upload: ShortText
    """Its number, as it was given out before the first part."""

    @property
    def display_name(self) -> str:
        return "upload"


Source = Annotated[
    LocalFileSource | UrlSource | HubDatasetSource | S3Source | UploadSource,
    Field(discriminator="kind"),
]
SOURCE_ADAPTER: TypeAdapter[Source] = TypeAdapter(Source)


def resolve_inside(folders: Sequence[Path], path: str) -> Path:
    """Return where a path really leads, if that is inside one of the folders.

    Raises:
        InvalidError: it leads out of them, by dots or links, or there is nothing.

    """
    try:
        real = Path(path).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        real = None
    if real is None or not any(real.is_relative_to(one.resolve()) for one in folders):
        # What is there outside of them is nobody's business, so both are told alike.
        raise InvalidError(
            "There is nothing of that name in the folders that may be read.",
            hint="The operator opens folders with STUDIO_IMPORT_FOLDERS.",
            param="path",
        )
    return real


class FetchLimits(BaseModel):
    """How much may be brought, as the process that fetches it is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    row_bytes: int
    """The longest row; a longer one is a broken file."""
    seconds: float = 12 * 3600.0
    """For all of it, however often it is broken off."""


class FetchRequest(BaseModel):
    """What a `fetch` chore is to bring."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: Source
    home: Path
    """Where data sets are kept."""
    about: str = ""
    """Where it comes from, for whoever watches."""
    name: str = ""
    """What the data set will be called; nothing means as the file is."""
    limits: FetchLimits


class FetchResult(BaseModel):
    """What a `fetch` chore has brought."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    """Among the files of its folder."""
    filename: str
    """As it was called where it comes from."""
    bytes: int
    sha256: str
    arrival: dict[str, Any]
    """What was seen in it: a `studio.intake.conversion.detection_result.DetectionResult`."""
    facts: dict[str, Any] = {}
    """What else is known of where it comes from: a hub's commit, an address that was led to."""
