"""A request before it is sent: its path, content and response schema."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar

from pydantic import TypeAdapter

from studio.client.schemas import Page

T = TypeVar("T")
ProgressCallback = Callable[[int, int], object]
"""Called with the number of bytes sent, and the total."""

_PAGE_SIZE = 100


class ProgressFile:
    """A file that reports how far it has been read."""

    def __init__(self, file: BinaryIO, size: int, on_progress: ProgressCallback) -> None:
        self._file, self._size, self._heard = file, size, on_progress
        self.name = file.name

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        self._heard(self._file.tell(), self._size)
        return part

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()


@dataclass(frozen=True, slots=True, kw_only=True)
class FileUpload:
    path: Path
    on_progress: ProgressCallback

    @contextmanager
    def open(self) -> Iterator[dict[str, Any]]:
        with self.path.open("rb") as file:
            counted = ProgressFile(file, self.path.stat().st_size, self.on_progress)
            yield {"file": (self.path.name, counted)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest(Generic[T]):
    """A request with its response schema."""

    method: str
    path: str
    shape: Any = None
    params: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None
    form: Mapping[str, str] = field(default_factory=dict)
    file: FileUpload | None = None
    key: str = ""
    """The idempotency key, so that repeating the request has no further effect."""

    @property
    def is_retryable(self) -> bool:
        return bool(self.key) or self.method in {"GET", "PUT", "DELETE"}

    def read(self, content: bytes) -> T:
        adapter: TypeAdapter[T] = TypeAdapter(self.shape)
        return adapter.validate_json(content or b"null")


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRequest(Generic[T]):
    """A request for a paginated list."""

    path: str
    shape: type[T]
    params: Mapping[str, Any] = field(default_factory=dict)

    def page(self, after: int | None) -> ApiRequest[Page[T]]:
        params = drop_empty({"limit": _PAGE_SIZE, **self.params, "after": after})
        page_type: Any = Page
        return ApiRequest(method="GET", path=self.path, shape=page_type[self.shape], params=params)


def drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None and value != ""}
