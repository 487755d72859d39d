"""Lines of a file, none of them held in memory beyond a limit."""

from collections.abc import Iterator
from pathlib import Path

from studio.errors import InvalidError
from studio.intake.kinds import text_start

_PIECE = 2**20


def lines(path: Path, limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield each line with its number; None in place of one that is too long."""
    number = 0
    with path.open("rb") as file:
        file.seek(text_start(path))
        while line := file.readline(limit + 1):
            number += 1
            if len(line) <= limit or line.endswith(b"\n"):
                yield number, line
                continue
            while piece := file.readline(_PIECE):
                if piece.endswith(b"\n"):
                    break
            yield number, None


def text(raw: bytes, place: str) -> str:
    """Return the text of some bytes.

    Raises:
        InvalidError: they are not UTF-8. Every row with an accent would be lost, so all is refused.

    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidError(
            f"The file is not UTF-8 text: {place} holds the byte {raw[error.start]:#04x}.",
            hint="It may be Latin-1 or Windows text. Save it as UTF-8 and upload it again.",
            param="file",
        ) from error


def too_long(place: str, limit: int, hint: str) -> InvalidError:
    """Refuse a file for a row that cannot be stepped over."""
    return InvalidError(f"{place} is longer than {limit / 2**20:.3g} MB.", hint=hint, param="file")
