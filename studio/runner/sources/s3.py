"""A file from a bucket of S3, or what is compatible: where that is, the operator has said."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from studio.data_sources import FetchLimits
from studio.errors import InvalidError, NotFoundError, UnavailableError
from studio.runner.sources.chunked_file import CHUNK_BYTES, ChunkWriter
from studio.runner.task_dispatch import ReportProgress
from studio.settings import Settings


def fetch(
    url: str, limits: FetchLimits, settings: Settings, folder: Path, tell: ReportProgress
) -> tuple[Path, str, dict[str, Any]]:
    """Fetch a file. Return where it is, its name, and which version of it it is.

    Raises:
        InvalidError: the keys do not open it.
        NotFoundError: there is no such file.
        UnavailableError: S3 cannot be reached, or what reads it is not installed.

    """
    files, target = _filesystem(settings), folder / "fetched"
    try:
        tell("asking for it", None)
        about = files.info(url)
        with files.open(url, "rb") as opened:
            ChunkWriter(limits, tell, about["size"]).append(target, _chunks(opened))
    except FileNotFoundError as error:
        raise NotFoundError(f"There is no {url}.", hint="Check bucket and key.") from error
    except PermissionError as error:
        raise _access_error(files, url) from error
    except OSError as error:
        if target.exists() and error.errno:
            raise
        raise UnavailableError(
            f"S3 could not be read: {error}.", hint="Try again later."
        ) from error
    return target, PurePosixPath(url).name, {"etag": str(about.get("ETag", "")).strip('"')}


_ERROR_MESSAGES = {
    "InvalidAccessKeyId": "S3 knows no access key like that of this studio.",
    "SignatureDoesNotMatch": "The secret key of this studio does not belong to its access key.",
    "RequestTimeTooSkewed": "The clock of this machine is wrong, so S3 believes no signature.",
}
"""Of what S3 calls wrong with a request."""
_CLOCK_HINT = "Set the clock, then try again."
_KEYS_HINT = (
    "An administrator sets both keys on the page Settings, Secrets, or the operator by "
    "STUDIO_S3_KEY and STUDIO_S3_SECRET."
)


def _access_error(files: Any, url: str) -> InvalidError:  # noqa: ANN401 -- of fsspec
    code = _error_code(files, url)
    if code in _ERROR_MESSAGES:
        hint = _CLOCK_HINT if code == "RequestTimeTooSkewed" else _KEYS_HINT
        return InvalidError(_ERROR_MESSAGES[code], hint=hint, param="url")
    return InvalidError(f"The keys of this studio do not open {url}.", hint=_KEYS_HINT, param="url")


def _error_code(files: Any, url: str) -> str:  # noqa: ANN401 -- of fsspec
    """Ask for a byte, and return what S3 calls wrong: asked for facts alone it does not say."""
    try:
        files.cat_file(url, start=0, end=1)
    except OSError as error:
        told = getattr(error.__cause__, "response", {})
        return str(told.get("Error", {}).get("Code", ""))
    return ""


def _filesystem(settings: Settings) -> Any:  # noqa: ANN401 -- fsspec's are not typed
    try:
        from s3fs import S3FileSystem  # noqa: PLC0415 -- optional dependency
    except ImportError as error:
        raise UnavailableError(
            "This studio cannot read from S3: a package for it is missing.",
            hint="Install it: pip install 'mantissa-studio[s3]'",
        ) from error
    return S3FileSystem(
        key=settings.s3_key.get_secret_value() or None,
        secret=settings.s3_secret.get_secret_value() or None,
        endpoint_url=settings.s3_endpoint or None,
        anon=not settings.s3_key.get_secret_value(),
        use_listings_cache=False,
    )


def _chunks(opened: Any) -> Iterator[bytes]:  # noqa: ANN401 -- of fsspec
    while piece := opened.read(CHUNK_BYTES):
        yield piece
