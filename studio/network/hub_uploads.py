"""Upload a folder to a model repository of the Hugging Face hub.

Large files go first, one after the other; then one commit names all files. What has arrived is not
sent again: the hub knows files by their checksums. So an upload that broke off resumes with the
file at which it stopped, and a second upload of the same folder changes nothing.
"""

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from studio.errors import ConflictError, InvalidError, StudioError, UnavailableError
from studio.network.hub_client import Hub

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi


class CountedFile(io.BufferedReader):
    """A file that says how far it has been read, once it is asked to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.open("rb", buffering=0))
        self.on_read: Callable[[int], None] | None = None
        """Called with the position, in bytes."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        if self.on_read is not None:
            self.on_read(self.tell())
        return data


@dataclass(slots=True)
class Upload:
    """Sends a folder's files to a repository, and reports the overall progress."""

    hub: Hub
    repo: str
    """Its name, as `owner/name`."""
    files: Mapping[str, Path]
    """Where they are, by their names in the repository."""
    report: Callable[[str, float | None], None]
    total: int = field(init=False)
    done: int = field(default=0, init=False)
    """Bytes of the files that are complete."""

    def __post_init__(self) -> None:
        self.total = sum(path.stat().st_size for path in self.files.values())

    def send(self, message: str, *, is_private: bool) -> str:
        """Create the repository if there is none, send the files, and return the commit.

        Raises:
            ConflictError: The repository is public, and a private one was asked for.
            InvalidError: The hub refuses the repository to this studio's token.
            UnavailableError: The hub cannot be reached, or refuses a file.

        """
        # Xet, the hub's other protocol, says nothing of its progress, and mirrors do not speak it.
        os.environ["HF_HUB_DISABLE_XET"] = "1"
        from huggingface_hub import CommitOperationAdd, HfApi  # noqa: PLC0415 -- heavy import

        api = HfApi(endpoint=self.hub.endpoint, token=self.hub.token or False)
        with explain_errors(self.hub, self.repo), ExitStack() as stack:
            self.report("contacting the hub", None)
            self._open_repo(api, is_private=is_private)
            self.report("checking the files", None)
            opened = [stack.enter_context(CountedFile(path)) for path in self.files.values()]
            operations = [
                CommitOperationAdd(name, file)
                for name, file in zip(self.files, opened, strict=True)
            ]
            for operation, file in zip(operations, opened, strict=True):
                self._send_file(api, operation, file)
            self.report("finishing", 1.0)
            made = api.create_commit(self.repo, operations, commit_message=message)
            return made.oid

    def _open_repo(self, api: "HfApi", *, is_private: bool) -> None:
        api.create_repo(self.repo, private=is_private, exist_ok=True)
        if is_private and not api.model_info(self.repo).private:
            raise ConflictError(
                f"{self.repo} is public already.",
                hint="Choose another name, or allow everyone to see the model.",
            )

    def _send_file(self, api: "HfApi", operation: "CommitOperationAdd", file: CountedFile) -> None:
        """Send a file that the hub keeps aside; small ones are sent with the commit."""
        self._tell(0)
        file.on_read = self._tell
        api.preupload_lfs_files(self.repo, [operation], num_threads=1, free_memory=False)
        file.on_read = None
        self.done += operation.upload_info.size
        self._tell(0)

    def _tell(self, position: int) -> None:
        sent = min(self.done + position, self.total)
        self.report(
            f"uploaded {_format_size(sent)} of {_format_size(self.total)}", sent / (self.total or 1)
        )


@contextmanager
def explain_errors(hub: Hub, repo: str) -> Iterator[None]:
    """Translate errors into messages with a hint; none of them contains the token."""
    import httpx2  # noqa: PLC0415 -- heavy import
    from huggingface_hub import errors  # noqa: PLC0415 -- heavy import

    try:
        yield
    except (errors.HfHubHTTPError, httpx2.TransportError, RuntimeError, ValueError) as error:
        # The hub's client wraps what happens to a file in a RuntimeError.
        causes = [error, error.__cause__]
        for cause in causes:
            if isinstance(cause, errors.HfHubHTTPError):
                raise _refused(hub, repo, cause) from error
        if any(isinstance(cause, httpx2.TransportError) for cause in causes):
            raise UnavailableError(
                f"The connection to {hub.host} broke.",
                hint="Try again: what has arrived is not sent again.",
            ) from error
        raise UnavailableError(
            f"{hub.host} does not respond like the Hugging Face hub.",
            hint="The operator sets its address with STUDIO_HUB_ENDPOINT.",
        ) from error


def _refused(hub: Hub, repo: str, error: Any) -> StudioError:  # noqa: ANN401 -- a type of the hub's client
    status = error.response.status_code
    if status in (401, 403):
        return InvalidError(
            f"{hub.host} does not let this studio write to {repo}.",
            hint="Use a token with write access to it: Settings, Secrets, or STUDIO_HUB_TOKEN.",
            param="repo",
        )
    if status == 429:  # noqa: PLR2004 -- too many requests
        return UnavailableError(
            f"{hub.host} received too many requests.", hint="Try again in a few minutes."
        )
    reason = error.server_message or status
    return UnavailableError(
        f"{hub.host} refused the upload: {reason}",
        hint="Try again: what has arrived is not sent again.",
    )


def _format_size(size: int) -> str:
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"  # noqa: PLR2004 -- a giga
