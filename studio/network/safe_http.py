"""Outgoing HTTP requests that cannot reach internal networks (SSRF protection).

A host name is resolved once, every address is checked, and the connection goes to a checked
address, so DNS rebinding has no effect. Proxies from the environment are ignored, because they
would connect to unchecked addresses. GET follows redirects, each checked the same way; POST does
not.

The studio has its own list of internal networks because `ipaddress.is_global` depends on the Python
version (3.11.7 treats 192.0.0.0/24, 3fff::/20 and fec0::/10 as public), and no registry lists the
public address at which Azure serves its virtual machines. Sources: IANA's special-purpose address
registries for IPv4 (RFC 6890, as of 2025-10) and IPv6, its IPv6 address space registry, and the
cloud providers' documentation. `docs/security.md` shows the same table; a contract test compares
them.
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
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import SplitResult, urljoin, urlsplit

from studio.errors import InvalidError, UnavailableError

NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class InternalNetwork:
    network: IPv4Network | IPv6Network
    purpose: str


_PURPOSES = {
    "0.0.0.0/8": "this host and network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by carriers; Alibaba Cloud's metadata (100.100.100.200)",
    "127.0.0.0/8": "this host",
    "168.63.129.16/32": "Azure's platform services",
    "169.254.0.0/16": "link-local; metadata of AWS, Azure, Google Cloud, Oracle and others",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments; Oracle Cloud Classic's metadata (192.0.0.192)",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "6to4 relays, deprecated",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarks of networks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, and broadcast",
    "::/8": "this host, IPv4 in IPv6, translation (64:ff9b:1::/48)",
    "100::/8": "discard-only, and reserved",
    "200::/7": "reserved",
    "400::/6": "reserved",
    "800::/5": "reserved",
    "1000::/4": "reserved",
    "2001::/23": "protocol assignments: Teredo, benchmarks, ORCHID",
    "2001:db8::/32": "documentation",
    "3fff::/20": "documentation",
    "4000::/2": "reserved; segment routing (5f00::/16)",
    "8000::/2": "reserved",
    "c000::/3": "reserved",
    "e000::/4": "reserved",
    "f000::/5": "reserved",
    "f800::/6": "reserved",
    "fc00::/7": "unique local; metadata of AWS (fd00:ec2::254) and Google Cloud (fd20:ce::254)",
    "fe00::/9": "reserved",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local, deprecated",
    "ff00::/8": "multicast",
}

INTERNAL_NETWORKS = tuple(
    InternalNetwork(ip_network(network), purpose) for network, purpose in _PURPOSES.items()
)


def find_internal_network(address: str) -> InternalNetwork | None:
    """Return the internal network of an address, after address translation, or None.

    Raises:
        ValueError: the text is not an IP address.

    """
    ip = _destination(ip_address(address.partition("%")[0]))
    return next((row for row in INTERNAL_NETWORKS if ip in row.network), None)


def _destination(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address behind a translated or tunnelled IPv6 address, or the address."""
    if isinstance(ip, IPv4Address):
        return ip
    if ip.ipv4_mapped or ip.sixtofour:
        return ip.ipv4_mapped or ip.sixtofour or ip
    if ip in NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip


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
    plain = _connect(_resolve_and_check(host, port, allow_internal=allow_internal))
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


def _resolve_and_check(
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
