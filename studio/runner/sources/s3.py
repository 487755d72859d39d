"""Fetch a file from S3 or a compatible store, at the endpoint the operator has configured."""

from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from studio.data_sources import FetchLimits
from studio.errors import InvalidError, NotFoundError, UnavailableError
from studio.runner.execution import ReportProgress
from studio.runner.sources.chunked_file import CHUNK_BYTES, ChunkWriter
from studio.settings import Settings


def fetch(
    url: str, limits: FetchLimits, settings: Settings, folder: Path, report: ReportProgress
) -> tuple[Path, str, dict[str, Any]]:
    """Fetch a file. Return its path, its name and its version.

    Raises:
        InvalidError: the keys do not give access.
        NotFoundError: there is no such file.
        UnavailableError: S3 cannot be reached, or the package for it is not installed.

    """
    files, target = _filesystem(settings), folder / "fetched"
    try:
        report("contacting S3", None)
        info = files.info(url)
        with files.open(url, "rb") as opened:
            ChunkWriter(limits, report, info["size"]).append(
                target, iter(partial(opened.read, CHUNK_BYTES), b"")
            )
    except FileNotFoundError as error:
        raise NotFoundError(
            f"There is no file {url}.", hint="Check the bucket and the key."
        ) from error
    except PermissionError as error:
        raise _access_error(files, url) from error
    except OSError as error:
        if target.exists() and error.errno:
            raise
        raise UnavailableError(
            f"S3 could not be read: {error}.", hint="Try again later."
        ) from error
    return target, PurePosixPath(url).name, {"etag": str(info.get("ETag", "")).strip('"')}


_ERROR_MESSAGES = {
    "InvalidAccessKeyId": "S3 does not know the studio's access key.",
    "SignatureDoesNotMatch": "The studio's secret key does not match its access key.",
    "RequestTimeTooSkewed": "The clock of this machine is wrong, so S3 rejects every signature.",
}
"""Messages by S3's error code."""
_CLOCK_HINT = "Set the clock, then try again."
_KEYS_HINT = (
    "An administrator sets both keys under Settings, Secrets; the operator can set "
    "STUDIO_S3_KEY and STUDIO_S3_SECRET instead."
)


def _access_error(files: Any, url: str) -> InvalidError:  # noqa: ANN401 -- of fsspec
    code = _error_code(files, url)
    if code in _ERROR_MESSAGES:
        hint = _CLOCK_HINT if code == "RequestTimeTooSkewed" else _KEYS_HINT
        return InvalidError(_ERROR_MESSAGES[code], hint=hint, param="url")
    return InvalidError(
        f"The studio's keys do not give access to {url}.", hint=_KEYS_HINT, param="url"
    )


def _error_code(files: Any, url: str) -> str:  # noqa: ANN401 -- of fsspec
    """Request a byte and return S3's error code; a request for metadata returns none."""
    try:
        files.cat_file(url, start=0, end=1)
    except OSError as error:
        response = getattr(error.__cause__, "response", {})
        return str(response.get("Error", {}).get("Code", ""))
    return ""


def _filesystem(settings: Settings) -> Any:  # noqa: ANN401 -- fsspec's are not typed
    try:
        from s3fs import S3FileSystem  # noqa: PLC0415 -- optional dependency
    except ImportError as error:
        raise UnavailableError(
            "This studio cannot read from S3: a package is missing.",
            hint="Install it: pip install 'mantissa-studio[s3]'",
        ) from error
    return S3FileSystem(
        key=settings.s3_key.get_secret_value() or None,
        secret=settings.s3_secret.get_secret_value() or None,
        endpoint_url=settings.s3_endpoint or None,
        anon=not settings.s3_key.get_secret_value(),
        use_listings_cache=False,
    )
