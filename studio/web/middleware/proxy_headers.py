"""Forwarded headers of a reverse proxy: client address, scheme and user name.

Only headers from trusted proxies are used: otherwise any client could claim any name.
"""

from ipaddress import ip_address, ip_network

from starlette.types import ASGIApp, Receive, Scope, Send

from studio.errors import InvalidError
from studio.settings import Settings

FORWARDED_FOR, FORWARDED_PROTO = b"x-forwarded-for", b"x-forwarded-proto"


class ProxyHeadersMiddleware:
    """Apply the headers of trusted proxies: client address, scheme and user name."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app = app
        self.header = settings.proxy_user_header.lower().encode()
        try:
            proxies = settings.trusted_proxies.split(",")
            self.networks = [ip_network(proxy.strip()) for proxy in proxies if proxy.strip()]
        except ValueError as error:
            raise InvalidError(
                f"STUDIO_TRUSTED_PROXIES contains an invalid address: {error}.",
                hint="Use addresses or networks, such as 127.0.0.1,10.0.0.0/8",
            ) from error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._is_trusted((scope.get("client") or ("",))[0]):
            scope = self._apply_headers(scope)
        await self.app(scope, receive, send)

    def _apply_headers(self, scope: Scope) -> Scope:
        headers = dict(scope["headers"])
        updated = {**scope, "state": {**scope.get("state", {})}}
        proto = headers.get(FORWARDED_PROTO, b"").decode("latin-1")
        if proto in {"http", "https"}:
            updated["scheme"] = proto
        if client := self._client_address(headers.get(FORWARDED_FOR, b"").decode("latin-1")):
            updated["client"] = (client, 0)
        if self.header and (name := headers.get(self.header, b"").decode("utf-8", "replace")):
            updated["state"]["named_by_proxy"] = name.strip().lower()
        return updated

    def _client_address(self, chain: str) -> str:
        """Return the last address that is not a trusted proxy: clients can forge those before."""
        hops = [hop.strip() for hop in chain.split(",") if hop.strip()]
        return next((hop for hop in reversed(hops) if not self._is_trusted(hop)), "")

    def _is_trusted(self, address: str) -> bool:
        try:
            client = ip_address(address)
        except ValueError:
            return False
        return any(client in network for network in self.networks)
