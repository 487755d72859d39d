"""Limit what reading a file may cost the process that a task runs in."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from studio.errors import TooLargeError
from studio.intake.files.limits import MAX_CHILD_MEMORY, MAX_CHILD_SECONDS, Limits
from studio.runner.sandbox import limit_memory


@contextmanager
def limit_reading(limits: Limits, file_bytes: int) -> Iterator[Limits]:
    """Limit the memory of this process meanwhile, and its time by the limits that are yielded.

    The file's own size comes on top: Arrow files are mapped, not loaded.

    Raises:
        TooLargeError: reading took more memory.

    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(MAX_CHILD_MEMORY + file_bytes)
    try:
        yield limits.within(MAX_CHILD_SECONDS)
    except MemoryError as error:
        raise TooLargeError(
            f"Reading the file takes more than {MAX_CHILD_MEMORY / 1e9:.2g} GB of memory.",
            hint="Split it, or leave rows out.",
            param="file",
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
