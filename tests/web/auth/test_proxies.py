"""A proxy before the studio: believed where it is listed, and nobody else."""

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from studio.db.accounts import Role
from studio.db.session import read_session
from studio.errors import InvalidError
from studio.services.accounts import accounts, audit_log
from studio.settings import Settings
from studio.web.app import create_app
from studio.web.middleware.request_guard import ProxyHeadersMiddleware
from tests.support.visitors import Visitors, make_visitors

PROXY = {"trusted_proxies": "10.0.0.1, 192.168.0.0/16", "proxy_user_header": "X-Forwarded-User"}
ANN = {"X-Forwarded-User": "Ann"}


@pytest.fixture
def home(engine: Engine, settings: Settings) -> Visitors:
    home = make_visitors(engine, settings.model_copy(update=PROXY), "accounts")
    home.account("ann", Role.MEMBER)
    return home


def visitor(home: Visitors, address: str, **headers: str) -> TestClient:
    return TestClient(home.app, client=(address, 1), follow_redirects=False, headers=headers or ANN)


@pytest.mark.parametrize("proxy", ["10.0.0.1", "192.168.7.7"])
def test_user_header_from_listed_proxy_signs_in(home: Visitors, proxy: str) -> None:
    assert visitor(home, proxy).get("/api/v1/runs").status_code == 200


@pytest.mark.parametrize("address", ["10.0.0.2", "127.0.0.1", "testclient"])
def test_user_header_from_unlisted_address_is_ignored(home: Visitors, address: str) -> None:
    assert visitor(home, address).get("/api/v1/runs").status_code == 401


def test_forged_forwarded_chain_is_not_trusted(home: Visitors) -> None:
    forged = ANN | {"X-Forwarded-For": "10.0.0.1"}

    assert visitor(home, "10.6.6.6", **forged).get("/api/v1/runs").status_code == 401


def test_unknown_forwarded_user_is_rejected(home: Visitors) -> None:
    mallory = visitor(home, "10.0.0.1", **{"X-Forwarded-User": "mallory"})

    assert mallory.get("/api/v1/runs").status_code == 401


def test_new_proxy_users_get_account_when_allowed(engine: Engine, settings: Settings) -> None:
    open_to_new = settings.model_copy(update=PROXY | {"new_people": "viewer"})
    home = make_visitors(engine, open_to_new, "accounts")

    assert visitor(home, "10.0.0.1").get("/api/v1/runs").status_code == 200
    with read_session(engine) as db:
        assert {one.name: one.role for one in accounts.list_all(db)} == {"ann": Role.VIEWER}


def test_user_header_is_ignored_without_accounts(engine: Engine, settings: Settings) -> None:
    home = make_visitors(engine, settings.model_copy(update=PROXY), "link")

    assert visitor(home, "10.0.0.1").get("/api/v1/runs").status_code == 401


def test_client_address_is_last_untrusted_hop(home: Visitors) -> None:
    chain = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9, 192.168.0.2"} | ANN
    visitor(home, "10.0.0.1", **chain).post("/api/v1/runs", json={})

    with read_session(home.engine) as db:
        assert audit_log.newest(db, 1)[0].address == "203.0.113.9"


def test_cookie_is_secure_behind_tls_proxy(home: Visitors) -> None:
    proxied = visitor(home, "10.0.0.1", **{"X-Forwarded-Proto": "https"})

    answer = proxied.post("/logout")

    assert "__Host-studio_80" in answer.headers["set-cookie"]


def test_invalid_proxy_address_is_reported(engine: Engine, settings: Settings) -> None:
    wrong = settings.model_copy(update={"trusted_proxies": "everybody"})

    with pytest.raises(InvalidError, match="invalid address"):
        ProxyHeadersMiddleware(create_app(engine, settings), wrong)
