"""Outgoing HTTP requests that cannot reach internal networks (SSRF protection).

A host name is resolved once, every address is checked, and the connection goes to a checked
address, so DNS rebinding has no effect. Proxies from the environment are ignored, because they
would connect to unchecked addresses. GET follows redirects, each checked the same way; POST does
not.
"""

import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from urllib.parse import SplitResult, urljoin, urlsplit

from studio.errors import InvalidError, UnavailableError
from studio.network.internal_networks import find_internal_network

WEB_PORTS = frozenset({80, 443})
FIRST_UNPRIVILEGED_PORT = 1024
"""Lower ports belong to mail, shells and file services, except the two web ports."""

CONNECT_SECONDS = 10.0
MAX_REDIRECTS = 6
"""How many URLs one request may go through."""
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 2**20
REDACTED = "…"


def blocked_reason(address: str) -> str:
    """Return why the studio must not connect to an address; empty if it may."""
    return f"{address} is an internal address" if find_internal_network(address) else ""


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    seconds: float,
    allow_internal: bool,
) -> int:
    """Post to a URL and return the response status, without reading the body.

    Raises:
        InvalidError: the URL is malformed, or leads to a blocked address.
        UnavailableError: it cannot be reached, or took longer than `seconds` in total.

    """
    opened = open_url(url, headers, seconds=seconds, allow_internal=allow_internal, body=body)
    with opened as response:
        return response.status


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A response whose body has not been read yet."""

    url: str
    """The URL after redirects."""
    status: int
    headers: Message
    _response: http.client.HTTPResponse
    _end: float

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the raw body as it arrives, not decompressed. A truncated body just ends.

        Raises:
            UnavailableError: the connection failed, or timed out.

        """
        while True:
            with _explain_errors(self._end):
                piece = self._response.read1(_CHUNK_BYTES)
                if time.monotonic() >= self._end:
                    raise TimeoutError
            if not piece:
                return
            yield piece


@contextmanager
def open_url(
    url: str,
    headers: Mapping[str, str],
    *,
    seconds: float,
    allow_internal: bool,
    body: bytes | None = None,
) -> Iterator[HttpResponse]:
    """Open a URL with GET, or with POST if there is a body.

    GET follows redirects and checks each like the first URL; POST does not.

    Raises:
        InvalidError: a URL on the way is malformed, or leads to a blocked address.
        UnavailableError: it cannot be reached, or took longer than `seconds` in total.

    """
    deadline = time.monotonic() + seconds
    with ExitStack() as stack:
        for _ in range(MAX_REDIRECTS):
            parts = _parse_url(url)
            with _explain_errors(deadline):
                remaining_seconds = max(0.0, deadline - time.monotonic())
                connection_context = _open_connection(
                    parts, remaining_seconds, allow_internal=allow_internal
                )
                connection = stack.enter_context(connection_context)
                verb = "GET" if body is None else "POST"
                path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
                connection.request(verb, path, body, dict(headers))
                response = stack.enter_context(closing(connection.getresponse()))
                # A response cut off by the timer looks like one that ended normally.
                if time.monotonic() >= deadline:
                    raise TimeoutError
            location = response.headers.get("Location", "")
            if response.status not in _REDIRECT_STATUSES or not location or body is not None:
                yield HttpResponse(url, response.status, response.headers, response, deadline)
                return
            stack.close()
            url = _redirect_target(url, location)
    raise UnavailableError("Too many redirects.")


def _redirect_target(url: str, location: str) -> str:
    target = urljoin(url, location)
    if url.startswith("https:") and not target.startswith("https:"):
        raise InvalidError("The URL redirects from https to an unencrypted address.")
    return target


@contextmanager
def _explain_errors(end: float) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        is_late = isinstance(error, TimeoutError) or time.monotonic() >= end
        reason = "it did not answer in time" if is_late else _error_reason(error)
        raise UnavailableError(f"It could not be reached: {reason}.") from error
    except UnicodeError as error:
        raise InvalidError("This is not a valid host name.") from error


def validate_url(url: str) -> None:
    """Reject a URL that cannot be fetched, without connecting to it.

    Raises:
        InvalidError: the URL is malformed, or contains a password.

    """
    if _parse_url(url).username is not None:
        raise InvalidError("A URL must not contain a password.", hint="Remove it.", param="url")


def redact_url(url: str) -> str:
    """Return a URL without parts that may be secret: path, query and password."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}/{REDACTED}"


def _parse_url(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and parts.hostname
        _ = parts.port
    except ValueError as error:
        raise InvalidError(f"This is not a valid URL: {error}.") from error
    if not is_whole:
        raise InvalidError("A URL must start with http:// or https:// and contain a host.")
    return parts


@contextmanager
def _open_connection(
    parts: SplitResult, seconds: float, *, allow_internal: bool
) -> Iterator[http.client.HTTPConnection]:
    """Open a connection that is closed after `seconds`, even if the server keeps sending slowly."""
    is_secure = parts.scheme == "https"
    host, port = parts.hostname or "", parts.port or (443 if is_secure else 80)
    plain = _connect(resolve_and_check(host, port, allow_internal=allow_internal))
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    connection = kind(host, port)
    connection.auto_open = 0  # connect only to the checked address
    with plain, closing(connection), _close_after(seconds, plain):
        context = ssl.create_default_context()
        connection.sock = context.wrap_socket(plain, server_hostname=host) if is_secure else plain
        yield connection


@contextmanager
def _close_after(seconds: float, connected: socket.socket) -> Iterator[None]:
    with connected.dup() as spare:
        cut = threading.Timer(seconds, _shut_down, [spare])
        cut.daemon = True
        cut.start()
        try:
            yield
        finally:
            cut.cancel()
            cut.join()


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def resolve_and_check(
    host: str, port: int, *, allow_internal: bool
) -> list[tuple[int, tuple[str, int]]]:
    """Resolve a host name; reject it if any of its addresses is blocked."""
    if not allow_internal and port not in WEB_PORTS and port < FIRST_UNPRIVILEGED_PORT:
        raise InvalidError(f"Port {port} is not a web port.", hint=_ALLOW_INTERNAL_HINT)
    resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not allow_internal:
        for *_, address in resolved:
            if refused := blocked_reason(str(address[0])):
                raise InvalidError(f"{refused}, which is blocked.", hint=_ALLOW_INTERNAL_HINT)
    return [(family, address) for family, _, _, _, address in resolved]  # type: ignore[misc] # typeshed of getaddrinfo


_ALLOW_INTERNAL_HINT = "The operator can allow it: STUDIO_ALLOW_INTERNAL_ADDRESSES=true"


def _connect(addresses: list[tuple[int, tuple[str, int]]]) -> socket.socket:
    last_error: OSError = OSError("it has no address")
    for family, address in addresses:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.settimeout(CONNECT_SECONDS)
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            last_error = error
        else:
            return sock
    raise last_error


def _error_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"its encryption failed ({error.reason or error})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
