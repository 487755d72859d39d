"""Requests to the outside: a name is resolved once, every address of it checked, then connected to.

What was checked is what is connected to, so a name that answers a public address first and an
internal one later gains nothing. Proxies from the environment are not asked: they would lead where
nobody has looked. Redirects are followed to fetch, each checked alike, and never to post.
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
"""Below it live mail, shells and files; the web has only its two ports there."""

CONNECT_SECONDS = 10.0
MAX_REDIRECTS = 6
"""How many addresses one request may go through."""
_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_CHUNK_BYTES = 2**20
REDACTED = "…"


def blocked_reason(address: str) -> str:
    """Say why an address may not be asked, or nothing."""
    return f"{address} is an internal address" if find_internal_network(address) else ""


def post(
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    *,
    seconds: float,
    allow_internal: bool,
) -> int:
    """Post to an address and return the status of the answer, whose body is not read.

    Raises:
        InvalidError: the address is none, or not one that may be asked.
        UnavailableError: it cannot be reached, or took longer than some seconds in all.

    """
    where, end = _parse_url(url), time.monotonic() + seconds
    with (
        _explain_errors(end),
        _open_connection(where, seconds, allow_internal=allow_internal) as connection,
    ):
        connection.request("POST", _request_target(where), body, dict(headers))
        status = connection.getresponse().status
        # An answer that was cut short reads as one that has ended.
        if time.monotonic() >= end:
            raise TimeoutError
        return status


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What an address has answered, up to its body."""

    url: str
    """Where redirects led to."""
    status: int
    headers: Message
    _response: http.client.HTTPResponse
    _end: float

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the body as it comes, unpacked by nobody. One that is cut off just ends.

        Raises:
            UnavailableError: the connection broke, or its time is over.

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
    """Ask for what is at an address, or post a body to it and hear the answer.

    Redirects are followed, each checked as the first was; with a body they are not.

    Raises:
        InvalidError: an address on the way is none, or not one that may be asked.
        UnavailableError: it cannot be reached, or all of it took longer than some seconds.

    """
    end = time.monotonic() + seconds
    with ExitStack() as held:
        for _ in range(MAX_REDIRECTS):
            where = _parse_url(url)
            with _explain_errors(end):
                left = max(0.0, end - time.monotonic())
                kept = _open_connection(where, left, allow_internal=allow_internal)
                connection = held.enter_context(kept)
                verb = "GET" if body is None else "POST"
                connection.request(verb, _request_target(where), body, dict(headers))
                response = held.enter_context(closing(connection.getresponse()))
            further = response.headers.get("Location", "")
            if response.status not in _REDIRECT_STATUSES or not further or body is not None:
                yield HttpResponse(url, response.status, response.headers, response, end)
                return
            held.close()
            url = _redirect_target(url, further)
    raise UnavailableError("It leads from one address to the next without end.")


def _redirect_target(url: str, further: str) -> str:
    there = urljoin(url, further)
    if url.startswith("https:") and not there.startswith("https:"):
        raise InvalidError("It leads from an encrypted address to one that is not.")
    return there


@contextmanager
def _explain_errors(end: float) -> Iterator[None]:
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        is_late = isinstance(error, TimeoutError) or time.monotonic() >= end
        reason = "it did not answer in time" if is_late else _error_reason(error)
        raise UnavailableError(f"It could not be reached: {reason}.") from error
    except UnicodeError as error:
        raise InvalidError("This is no name of a host.") from error


def _request_target(where: SplitResult) -> str:
    return (where.path or "/") + (f"?{where.query}" if where.query else "")


def validate_url(url: str) -> None:
    """Refuse what cannot be fetched, as far as can be told without asking anybody.

    Raises:
        InvalidError: it is no address, or tells a password.

    """
    if _parse_url(url).username is not None:
        raise InvalidError("An address tells no password.", hint="Leave it out.", param="url")


def redact_url(url: str) -> str:
    """Return where an address leads without what may be secret in it: path, query, password."""
    where = urlsplit(url)
    port = f":{where.port}" if where.port else ""
    return f"{where.scheme}://{where.hostname or ''}{port}/{REDACTED}"


def _parse_url(url: str) -> SplitResult:
    try:
        where = urlsplit(url)
        is_whole = where.scheme in ("http", "https") and where.hostname
        _ = where.port
    except ValueError as error:
        raise InvalidError(f"This is no address: {error}.") from error
    if not is_whole:
        raise InvalidError("An address begins with http:// or https:// and names a host.")
    return where


@contextmanager
def _open_connection(
    where: SplitResult, seconds: float, *, allow_internal: bool
) -> Iterator[http.client.HTTPConnection]:
    """Open a connection that is cut when its time is over, however slowly the other side talks."""
    is_secure = where.scheme == "https"
    host, port = where.hostname or "", where.port or (443 if is_secure else 80)
    plain = _connect(_resolve_and_check(host, port, allow_internal=allow_internal))
    kind = http.client.HTTPSConnection if is_secure else http.client.HTTPConnection
    connection = kind(host, port)
    connection.auto_open = 0  # never anywhere but to the checked address
    with plain, closing(connection), _close_after(seconds, plain):
        connection.sock = _wrap_tls(plain, host) if is_secure else plain
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


def _wrap_tls(plain: socket.socket, host: str) -> ssl.SSLSocket:
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _resolve_and_check(
    host: str, port: int, *, allow_internal: bool
) -> list[tuple[int, tuple[str, int]]]:
    """Resolve a name. One address that may not be asked makes all of them suspect."""
    if not allow_internal and port not in WEB_PORTS and port < FIRST_UNPRIVILEGED_PORT:
        raise InvalidError(f"Port {port} is not for the web.", hint=_ALLOW_INTERNAL_HINT)
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not allow_internal:
        for *_, address in found:
            if refused := blocked_reason(str(address[0])):
                raise InvalidError(f"{refused}, which is not asked.", hint=_ALLOW_INTERNAL_HINT)
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc] # as getaddrinfo has it


_ALLOW_INTERNAL_HINT = "The operator may allow it: STUDIO_ALLOW_INTERNAL_ADDRESSES=true"


def _connect(addresses: list[tuple[int, tuple[str, int]]]) -> socket.socket:
    failed: OSError = OSError("it has no address")
    for family, address in addresses:
        made = socket.socket(family, socket.SOCK_STREAM)
        made.settimeout(CONNECT_SECONDS)
        try:
            made.connect(address)
        except OSError as error:
            made.close()
            failed = error
        else:
            return made
    raise failed


def _error_reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"its encryption failed ({error.reason or error})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
