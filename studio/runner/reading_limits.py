"""Limit the memory and time that reading a file may take in a task's process."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

from studio.errors import TooLargeError
from studio.intake.files.limits import MAX_CHILD_MEMORY, MAX_CHILD_SECONDS, Limits
from studio.runner.sandbox import limit_memory


@contextmanager
def limit_reading(limits: Limits, file_bytes: int) -> Iterator[Limits]:
    """Limit the memory of this process, and yield limits that bound the time, too.

    The file's own size is added: Arrow files are memory-mapped, not loaded.

    Raises:
        TooLargeError: reading needed more memory.

    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit_memory(MAX_CHILD_MEMORY + file_bytes)
    try:
        yield limits.within(MAX_CHILD_SECONDS)
    except MemoryError as error:
        raise TooLargeError(
            f"Reading the file takes more than {MAX_CHILD_MEMORY / 1e9:.2g} GB of memory.",
            hint="Split the file, or remove rows.",
            param="file",
        ) from error
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
