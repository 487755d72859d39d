"""A service on this machine that signs people in by OpenID Connect, with keys of its own.

Description can be bent in each way that must not be believed.
"""

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import ECKey, Key, RSAKey

CLIENT, SECRET = "studio", "hush hush"


@dataclass(slots=True)
class Provider:
    url: str = ""
    algorithm: str = "RS256"
    """What it signs with; `none` signs nothing, HS256 with its public key, as attackers do."""
    person: dict[str, Any] = field(default_factory=dict)
    """What it claims of whoever signs in, over what it would."""
    calls_itself: str = ""
    asked: dict[str, dict[str, str]] = field(default_factory=dict)
    """What each code was given for."""
    refuses: str = ""

    def sign_in(self, address: str) -> str:
        """Sign whoever was sent here in. Return where they are sent back to."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        code = f"code-{len(self.asked)}"
        self.asked[code] = asked
        return f"{asked['redirect_uri']}?code={code}&state={asked['state']}"

    def answer(self, form: dict[str, str], shown: str) -> dict[str, Any]:
        """Give a token for a code, to who can show that it was sent to them."""
        asked = self.asked.pop(form["code"], None)
        wanted = f"Basic {base64.b64encode(b'studio:hush%20hush').decode()}"
        challenge = hashlib.sha256(form["code_verifier"].encode()).digest()
        is_theirs = asked is not None and _unpadded(challenge) == asked["code_challenge"]
        if self.refuses or asked is None or not is_theirs or shown != wanted:
            return {"error": "invalid_grant", "error_description": self.refuses}
        return {"token_type": "Bearer", "access_token": "x", "id_token": self._token(asked)}

    def _token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        usual = {"iss": self.url, "aud": CLIENT, "sub": "7", "iat": now, "exp": now + 300}
        claims = usual | {"nonce": asked["nonce"], "preferred_username": "ann"} | self.person
        if self.algorithm in ("none", "HS256"):
            return _forged(claims, self.algorithm)
        key = keys()[self.algorithm]
        return jwt.encode({"alg": self.algorithm, "kid": key.kid}, claims, key, [self.algorithm])


@cache
def keys() -> dict[str, Key]:
    """Make a key for each algorithm, once: they take a while."""
    rsa = RSAKey.generate_key(2048, parameters={"kid": "one"})
    return {
        "RS256": rsa,
        "ES256": ECKey.generate_key("P-256", parameters={"kid": "two"}),
        "RS512": rsa,
    }


@contextmanager
def run_provider() -> Iterator[Provider]:
    made = Provider()
    bound = type("Bound", (_Handler,), {"provider": made})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    made.url = made.calls_itself = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    provider: ClassVar[Provider]

    def do_GET(self) -> None:
        url = self.provider.url
        about: dict[str, dict[str, Any]] = {
            "/.well-known/openid-configuration": {
                "issuer": self.provider.calls_itself,
                "authorization_endpoint": f"{url}/authorize",
                "token_endpoint": f"{url}/token",
                "jwks_uri": f"{url}/keys",
            },
            "/keys": {"keys": [keys()[name].as_dict(private=False) for name in ("RS256", "ES256")]},
        }
        self._say(about[self.path])

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["content-length"])).decode()
        form = {name: values[0] for name, values in parse_qs(content).items()}
        self._say(self.provider.answer(form, self.headers.get("authorization", "")))

    def _say(self, told: dict[str, Any]) -> None:
        content = json.dumps(told).encode()
        self.send_response(400 if "error" in told else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def _forged(claims: dict[str, Any], algorithm: str) -> str:
    """Create token without the private key."""
    head = _unpadded(json.dumps({"alg": algorithm, "kid": "one", "typ": "JWT"}).encode())
    signed = f"{head}.{_unpadded(json.dumps(claims).encode())}"
    if algorithm == "none":
        return f"{signed}."
    key = keys()["RS256"]
    assert isinstance(key, RSAKey)
    public = key.as_pem(private=False)
    return f"{signed}.{_unpadded(hmac.digest(public, signed.encode(), hashlib.sha256))}"


def _unpadded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).decode().rstrip("=")
