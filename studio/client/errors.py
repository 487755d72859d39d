"""Errors of the client, with the message and hint of the studio."""

import httpx2

from studio.errors import StudioError, UnavailableError


class ApiError(StudioError):
    """The studio returned an error. `code` is one of the codes that its API documents."""

    def __init__(
        self, status: int, message: str, *, code: str, hint: str = "", param: str = ""
    ) -> None:
        super().__init__(message, hint=hint, param=param)
        self.code = code
        self.status = status
        """The HTTP status."""


class UnreachableError(UnavailableError):
    """Nothing responds at the studio's URL."""


def api_error(response: httpx2.Response) -> ApiError:
    """Return the studio's error, or an error saying that the server is not a studio."""
    try:
        error_body = response.json()["error"]
        return ApiError(
            response.status_code,
            error_body["message"],
            code=error_body["code"],
            hint=error_body["hint"] or "",
            param=error_body["param"] or "",
        )
    except (ValueError, KeyError, TypeError):
        return ApiError(
            response.status_code,
            f"{response.request.url} responded with {response.status_code}, not like a studio.",
            code="not_a_studio",
            hint="Check the studio's address, which STUDIO_URL sets.",
        )


def unreachable_error(url: httpx2.URL, error: httpx2.TransportError) -> UnreachableError:
    return UnreachableError(
        f"No response from {url}: {error}.",
        hint="Start a studio with `studio serve`, or set its address with STUDIO_URL.",
    )
