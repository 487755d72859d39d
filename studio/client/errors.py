"""What a program is told when a call is refused: the studio's own sentence and hint."""

import httpx2

from studio.errors import StudioError, UnavailableError


class ApiError(StudioError):
    """The studio has refused. `code` is one of those its API documents."""

    def __init__(
        self, status: int, message: str, *, code: str, hint: str = "", param: str = ""
    ) -> None:
        super().__init__(message, hint=hint, param=param)
        self.code = code
        self.status = status
        """Of HTTP."""


class UnreachableError(UnavailableError):
    """Nobody answers at the studio's address."""


def api_error(response: httpx2.Response) -> ApiError:
    """Return why the studio has refused, or that something else has answered."""
    try:
        told = response.json()["error"]
        return ApiError(
            response.status_code,
            told["message"],
            code=told["code"],
            hint=told["hint"] or "",
            param=told["param"] or "",
        )
    except (ValueError, KeyError, TypeError):
        return ApiError(
            response.status_code,
            f"{response.request.url} answered {response.status_code}, and not as a studio does.",
            code="not_a_studio",
            hint="Is it the studio's address? STUDIO_URL sets it.",
        )


def unreachable_error(url: httpx2.URL, error: httpx2.TransportError) -> UnreachableError:
    return UnreachableError(
        f"Nobody answers at {url}: {error}.",
        hint="Start a studio with `studio serve`, or say where it is: STUDIO_URL.",
    )
