"""Which addresses may be asked, and that nothing but the address that was checked is."""

import shutil
import socket
import subprocess
import sys
import threading
import time

import pytest

from studio.errors import InvalidError, UnavailableError
from studio.network import safe_http
from tests.fakes.message_receivers import WebhookReceiver

INTERNAL = (
    "http://127.0.0.1/",
    "http://127.1/",
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://[::1]/",
    "http://[::]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:10.0.0.1]/",
    "http://[::127.0.0.1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[64:ff9b:1::a00:1]/",
    "http://[2002:7f00:1::]/",
    "http://[2002:a9fe:a9fe::]/",
    "http://[fe80::1]/",
    "http://[fd00::1]/",
    "http://[fd00:ec2::254]/",
    "http://[fec0::1]/",
    "http://[3fff::1]/",
    "http://[5f00::1]/",
    "http://[2001::1]/",
    "http://[4000::1]/",
    "http://[64:ff9b:1:7f00:0:100::]/",
    "http://[::ffff:0:7f00:1]/",
    "http://[64:ff9b::a83f:8110]/",
    "http://192.0.0.192/",
    "http://192.88.99.1/",
    "http://168.63.129.16/metadata",
    "http://100.100.100.200/",
    "http://0.0.0.0/",
    "http://10.1.2.3/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://169.254.169.254/latest/meta-data/",
    "http://224.0.0.1/",
    "http://240.0.0.1/",
    "http://255.255.255.255/",
    "http://localhost/",
    "http://evil@127.0.0.1/",
    "http://１２７.0.0.1/",  # noqa: RUF001 -- digits of full width, as an attacker writes them
    "https://127.0.0.1/",
)


def post(url: str, *, seconds: float = 20, allow_internal: bool = False) -> int:
    return safe_http.post(url, b"{}", {}, seconds=seconds, allow_internal=allow_internal)


@pytest.mark.parametrize("url", INTERNAL)
def test_internal_address_is_rejected(url: str) -> None:
    with pytest.raises(InvalidError, match="is an internal address, which is blocked"):
        post(url)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_public_address_is_accepted(address: str) -> None:
    assert safe_http.blocked_reason(address) == ""


@pytest.mark.parametrize("port", [22, 25, 111, 445])
def test_non_web_port_is_rejected(port: int) -> None:
    with pytest.raises(InvalidError) as refused:
        post(f"http://93.184.216.34:{port}/")

    assert refused.value.message == f"Port {port} is not a web port."


@pytest.mark.parametrize(
    "url", ["", "studio", "ftp://example.org/", "http:///path", "http://[::1", "http://a:b/"]
)
def test_invalid_url_is_rejected(url: str) -> None:
    with pytest.raises(InvalidError):
        post(url)


def test_internal_address_is_allowed_when_enabled(hook: WebhookReceiver) -> None:
    assert post(f"{hook.url}/in?a=1", allow_internal=True) == 204
    assert [one.path for one in hook.posted] == ["/in?a=1"]


def test_redirect_is_not_followed(hook: WebhookReceiver) -> None:
    hook.answers = [302]

    assert post(hook.url, allow_internal=True) == 302
    assert len(hook.posted) == 1


def test_environment_proxy_is_ignored(
    hook: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    assert post(hook.url, allow_internal=True) == 204


def test_missing_response_times_out(hook: WebhookReceiver) -> None:
    hook.go_on.clear()

    with pytest.raises(UnavailableError) as refused:
        post(hook.url, seconds=0.1, allow_internal=True)
    assert refused.value.message == "It could not be reached: it did not answer in time."


def test_endless_slow_response_times_out() -> None:
    """Each byte comes in time; the answer never ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            talking, _ = server.accept()
            with talking:
                talking.sendall(b"HTTP/1.1 200 OK\r\nX: ")
                try:
                    while True:
                        talking.sendall(b"a")
                        time.sleep(0.01)  # its pace, not a wait
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(UnavailableError, match="did not answer in time"):
            post(f"http://127.0.0.1:{server.getsockname()[1]}", seconds=0.3, allow_internal=True)
        thread.join()


def test_refused_connection_raises_unavailable_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(UnavailableError, match="Connection refused"):
            post(f"http://127.0.0.1:{taken.getsockname()[1]}", allow_internal=True)


def test_secrets_in_url_are_not_displayed() -> None:
    url = "https://me:secret@hooks.example.org:8443/services/T0/B0/secret?key=secret"

    assert safe_http.redact_url(url) == "https://hooks.example.org:8443/…"


_PUBLIC = "93.184.216.34"
"""An address of the internet, which a network of one process alone may have."""
_ALONE = 'ip address add "$0" dev lo && ip link set lo up && exec "$@"'
_LED = """
import sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from studio.network import safe_http
from studio.errors import InvalidError

public, further = sys.argv[1:]
asked = []

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.server.server_address[0])
        self.send_response(302)
        self.send_header("Location", further)
        self.end_headers()

for host, port in ((public, 8000), ("127.0.0.1", 8001)):
    server = HTTPServer((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
try:
    with safe_http.open_url(f"http://{public}:8000/", {}, seconds=60, allow_internal=False):
        print("It was opened.")
except InvalidError as error:
    print(error.message)
print(*asked)
"""


@pytest.mark.parametrize("host", ["127.0.0.1:8001", "[::ffff:127.0.0.1]:8001", "169.254.169.254"])
def test_redirect_from_public_to_internal_address_is_blocked(host: str) -> None:
    """In a network of its own, so that an address of the internet is on this machine."""
    alone = (shutil.which("unshare") or "", "-rn", "sh", "-c", _ALONE, f"{_PUBLIC}/32")
    if (
        not alone[0]
        or subprocess.run([*alone, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("This machine lets nobody make a network.")
    command = [*alone, sys.executable, "-c", _LED, _PUBLIC, f"http://{host}/"]

    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    assert said[0].endswith("is an internal address, which is blocked.")
    assert said[1:] == [_PUBLIC]
