"""A client for the Hugging Face hub or a mirror: search, model info, downloads.

Nothing is cached or retried here, so that callers learn quickly if the hub does not answer. Only
the operator sets the endpoint and the token.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from studio.errors import InvalidError, NotFoundError, StudioError, UnavailableError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

REPO_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
"""The format of repository IDs: `owner/name`."""

REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,199}")
"""A branch, a tag, a pull request such as refs/pr/1, or a commit."""

TIMEOUT_SECONDS = 10.0
"""How long to wait for the hub before giving up."""

_EXPANDED_FIELDS = (
    "downloads",
    "likes",
    "gated",
    "safetensors",
    "tags",
    "siblings",
    "pipeline_tag",
)
_TASKS = (
    *("text-generation", "text2text-generation", "fill-mask", "image-text-to-text"),
    *("sentence-similarity", "text-ranking"),
)
"""Tags of models that can be trained. The hub's filter finds models with all tags it is given, so
each is searched for on its own; T5, BART and Marian have the second, encoders the third, and those
that embed or rank texts the last two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """One file of a model, with its expected size and checksum."""

    name: str
    size: int
    sha256: str = ""
    """The checksum of a large (LFS) file; small files have only git's hash."""
    git: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubModel:
    """A model on the hub; fields that the response lacks keep their defaults."""

    id: str
    commit: str = ""
    downloads: int = 0
    likes: int = 0
    licence: str = ""
    gated: bool = False
    """Whether you must accept its terms before you can download files."""
    parameters: Mapping[str, int] = field(default_factory=dict)
    """Parameter counts by safetensors dtype name."""
    files: tuple[HubFile, ...] = ()

    @property
    def file_names(self) -> frozenset[str]:
        return frozenset(file.name for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The hub at one endpoint, accessed with one token."""

    endpoint: str
    token: str = field(default="", repr=False)
    timeout_seconds: float = TIMEOUT_SECONDS
    """How long to wait for an answer."""

    @property
    def host(self) -> str:
        return urlsplit(self.endpoint).hostname or self.endpoint

    def search(self, words: str, limit: int) -> list[HubModel]:
        """Return models that write text whose name contains the words, most downloaded first.

        Raises:
            UnavailableError: the hub cannot be reached, or its response is invalid.

        """
        with self._explain_errors(words):
            by_name = {
                model.id: model for task in _TASKS for model in self._search(words, task, limit)
            }
        return sorted(by_name.values(), key=lambda model: -model.downloads)[:limit]

    def _search(self, words: str, task: str, limit: int) -> list[HubModel]:
        from huggingface_hub import get_session  # noqa: PLC0415 -- heavy import

        query: dict[str, str | int | list[str]] = {
            "search": words,
            "filter": task,
            "sort": "downloads",
            "limit": limit,
            "expand": list(_EXPANDED_FIELDS),
        }
        answer = get_session().get(
            f"{self.endpoint}/api/models",
            params=query,
            headers=self.headers(),
            timeout=self.timeout_seconds,
        )
        _raise_for_status(answer)
        return [_hub_model(_model_info(payload)) for payload in answer.json()]

    def model_info(self, name: str, revision: str = "") -> HubModel:
        """Return a model's files and metadata at the commit that a revision currently points to.

        Raises:
            InvalidError: it is gated and access is denied; or the name or revision is malformed.
            NotFoundError: the model or revision does not exist, or is private.
            UnavailableError: the hub cannot be reached.

        """
        from huggingface_hub import HfApi  # noqa: PLC0415 -- heavy import

        if not REPO_ID.fullmatch(name):
            raise InvalidError(
                f"{name[:200]} does not have the form owner/name.", param="source.id"
            )
        if revision and not REVISION.fullmatch(revision):
            raise InvalidError("This is not a valid revision.", param="source.revision")
        api = HfApi(endpoint=self.endpoint, token=self.token or False)
        with self._explain_errors(name):
            info = api.model_info(
                name, revision=revision or None, timeout=self.timeout_seconds, files_metadata=True
            )
            return _hub_model(info)

    def url(self, name: str, commit: str, file: str) -> str:
        """Return the URL of a model's file."""
        return f"{self.endpoint}/{name}/resolve/{commit}/{quote(file, safe='')}"

    def headers(self) -> dict[str, str]:
        token = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {"User-Agent": "mantissa-studio"} | token

    @contextmanager
    def open(self, name: str, commit: str, file: HubFile, start: int) -> Iterator[Any]:
        """Open a file at a byte offset; the status is 206, or 200 if it starts at the first byte.

        Raises:
            StudioError: as in `model_info`. Errors while reading the body are not translated.

        """
        from huggingface_hub import get_session  # noqa: PLC0415 -- heavy import

        # Offsets and checksums refer to the bytes of the file, not to a compressed encoding.
        headers = self.headers() | {"Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        url = self.url(name, commit, file.name)
        with ExitStack() as stack:
            with self._explain_errors(name):
                request = get_session().stream(
                    "GET", url, headers=headers, timeout=self.timeout_seconds
                )
                answer = stack.enter_context(request)
                _raise_for_status(answer)
            yield answer

    @contextmanager
    def _explain_errors(self, name: str) -> Iterator[None]:
        """Translate errors into messages with a hint; none of them contains the token."""
        import httpx2  # noqa: PLC0415 -- heavy import
        from huggingface_hub import errors  # noqa: PLC0415 -- heavy import

        try:
            yield
        except errors.GatedRepoError as error:
            raise self._gated(name) from error
        except errors.RevisionNotFoundError as error:
            raise NotFoundError(
                f"{name} does not have this revision.", hint="Leave it empty for the newest."
            ) from error
        except (errors.RepositoryNotFoundError, errors.RemoteEntryNotFoundError) as error:
            raise self._missing(name) from error
        except errors.HfHubHTTPError as error:
            raise self._refused(error.response.status_code) from error
        except errors.OfflineModeIsEnabled as error:
            raise UnavailableError(
                "This studio is in offline mode.", hint="HF_HUB_OFFLINE is set where it runs."
            ) from error
        except httpx2.TransportError as error:
            raise UnavailableError(
                f"{self.host} cannot be reached from here.",
                hint="Use a model on this machine, or check the hub's address: "
                "STUDIO_HUB_ENDPOINT.",
            ) from error
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnavailableError(
                f"{self.host} does not respond like the Hugging Face hub.",
                hint="The operator sets its address with STUDIO_HUB_ENDPOINT.",
            ) from error

    def _gated(self, name: str) -> StudioError:
        how = (
            "The token of this studio does not have access yet."
            if self.token
            else "Then set STUDIO_HUB_TOKEN (or HF_TOKEN) where the studio runs."
        )
        return InvalidError(
            f"{name} is gated: you must accept its terms first.",
            hint=f"Accept its terms at {self.endpoint}/{name}. {how}",
            param="source.id",
        )

    def _missing(self, name: str) -> StudioError:
        how = "" if self.token else ", which requires STUDIO_HUB_TOKEN where the studio runs"
        return NotFoundError(
            f"{self.host} has no {name}, or this studio has no access to it.",
            hint=f"Check the spelling. It may have been renamed, or be private{how}.",
        )

    def _refused(self, status: int) -> StudioError:
        match status:
            case 401 | 403:
                why = "does not accept this studio's token" if self.token else "requires a token"
                hint = "Set STUDIO_HUB_TOKEN to a token with read access where the studio runs."
            case 429:
                why, hint = "received too many requests", "Try again in a few minutes."
            case _:
                why, hint = f"responded with status {status}", "Try again later."
        return UnavailableError(f"{self.host} refused the request: it {why}.", hint=hint)


def _raise_for_status(answer: Any) -> None:  # noqa: ANN401 -- a type of the hub's client
    from huggingface_hub import hf_raise_for_status  # noqa: PLC0415 -- heavy import

    hf_raise_for_status(answer)


def _model_info(payload: Mapping[str, Any]) -> "ModelInfo":
    from huggingface_hub.hf_api import ModelInfo  # noqa: PLC0415 -- heavy import

    return ModelInfo(**payload)  # type: ignore[no-untyped-call] # untyped upstream


def _hub_model(info: "ModelInfo") -> HubModel:
    if not REPO_ID.fullmatch(info.id):
        raise ValueError(info.id)
    return HubModel(
        id=info.id,
        commit=info.sha or "",
        downloads=info.downloads or 0,
        likes=info.likes or 0,
        licence=_licence(getattr(info.card_data, "license", None), info.tags or []),
        gated=bool(info.gated),
        parameters=dict(info.safetensors.parameters) if info.safetensors else {},
        files=tuple(_hub_file(sibling) for sibling in info.siblings or ()),
    )


def _licence(declared: object, tags: list[str]) -> str:
    tagged = (tag.removeprefix("license:") for tag in tags if tag.startswith("license:"))
    return declared if isinstance(declared, str) else next(tagged, "")


def _hub_file(sibling: Any) -> HubFile:  # noqa: ANN401 -- a RepoSibling; its module is a heavy import
    return HubFile(
        name=sibling.rfilename,
        size=sibling.size or 0,
        sha256=sibling.lfs.sha256 if sibling.lfs else "",
        git=sibling.blob_id or "",
    )
