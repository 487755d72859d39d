"""The gate: foreign hosts, cross-site writes, oversized bodies, headers of safety."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.settings import Settings
from studio.web.app import create_app
from studio.web.auth.security_headers import SECURITY_HEADERS

pytestmark = pytest.mark.smoke

BODY = {"name": "x", "recipe": {"base_model": "starter", "dataset": "starter"}}


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil", "testserver:80:80", ""]
)
def test_foreign_host_is_rejected(client: TestClient, host: str) -> None:
    assert client.get("/api/v1/hardware", headers={"Host": host}).status_code == 421


def test_host_check_ignores_port(client: TestClient) -> None:
    assert client.get("/api/v1/hardware", headers={"Host": "TestServer:8123"}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://testserver.evil.example"},
    ],
)
def test_cross_site_post_is_rejected(client: TestClient, headers: dict[str, str]) -> None:
    assert client.post("/api/v1/runs", json=BODY, headers=headers).status_code == 403


@pytest.mark.parametrize(
    "headers", [{}, {"Sec-Fetch-Site": "same-origin"}, {"Origin": "http://testserver"}]
)
def test_same_origin_and_non_browser_posts_are_allowed(
    client: TestClient, headers: dict[str, str]
) -> None:
    assert client.post("/api/v1/runs", json=BODY, headers=headers).status_code == 201


def test_large_body_is_rejected(client: TestClient) -> None:
    answer = client.post("/api/v1/runs", content=b" " * (5 * 2**20))

    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_entity_too_large")


def test_large_body_without_length_is_rejected(client: TestClient) -> None:
    answer = client.post("/api/v1/runs", content=(b" " * 2**20 for _ in range(5)))

    assert answer.status_code == 413


def test_pages_allow_only_own_scripts(client: TestClient) -> None:
    headers = client.get("/").headers

    assert "script-src 'self'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"


def test_server_error_has_security_headers(engine: Engine, settings: Settings) -> None:
    app = create_app(engine, settings)
    app.state.engine = None
    broken = TestClient(app, raise_server_exceptions=False)

    for path in ("/", "/api/v1/runs"):
        answer = broken.get(path)
        kept = {name: value for name, value in answer.headers.items() if name in SECURITY_HEADERS}
        assert (answer.status_code, kept) == (500, SECURITY_HEADERS)


def test_hashed_files_are_immutable_and_others_revalidated(client: TestClient) -> None:
    hashed = client.get("/static/css/base.css?v=abc")
    plain = client.get("/static/css/base.css")

    assert "immutable" in hashed.headers["cache-control"]
    assert plain.headers["cache-control"] == "no-cache"
