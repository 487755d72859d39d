"""Secrets: set on a page, locked in the database, shown to nobody, used at once."""

import json
import stat
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.db.accounts import Role, Scope
from studio.db.session import read_session
from studio.errors import UnavailableError
from studio.services.accounts import secrets
from studio.services.operations import backups
from studio.services.operations.backups import BackupOptions
from studio.services.operations.home import open_home
from studio.settings import SECRETS, Settings
from studio.web.app import create_app
from tests.fakes.hub_server import HubServer
from tests.support.page_reader import parse_page
from tests.support.visitors import make_visitors

TOKEN = "hf_letmein"  # noqa: S105 -- opens nothing but the hub of these tests


def put(client: TestClient, name: str = "hub_token", value: str = TOKEN) -> None:
    assert client.put(f"/api/v1/secrets/{name}", json={"value": value}).status_code == 204


def used(engine: Engine, settings: Settings, name: str = "hub_token") -> str:
    with read_session(engine) as db:
        return secrets.settings_with_secrets(db, settings).secret_value(name)


def test_every_secret_setting_can_be_set(client: TestClient) -> None:
    assert set(secrets.TITLES) == set(SECRETS)
    names = [one["name"] for one in client.get("/api/v1/secrets").json()["data"]]
    assert names == list(SECRETS)


def test_secret_set_on_page_is_used_and_not_shown(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    answer = client.post("/settings/secrets/hub_token", data={"value": f" {TOKEN}\n"})

    assert used(engine, settings) == TOKEN
    assert "by the local user" in " ".join(parse_page(answer.text).one(id="hub_token").text.split())
    for path in ("/settings/secrets", "/settings", "/api/v1/secrets", "/openapi.json"):
        assert TOKEN not in client.get(path).text


def test_hub_requests_use_current_token(engine: Engine, settings: Settings, hub: HubServer) -> None:
    hub.model("org/private", {"config.json": b"{}"}, private=True)
    there = settings.model_copy(update={"hub_endpoint": hub.url})
    client = TestClient(create_app(engine, there))

    client.get("/api/v1/models/search?q=private")
    put(client)
    client.get("/api/v1/models/search?q=private")

    assert [*dict.fromkeys(one.token for one in hub.asked)] == ["", TOKEN]


def test_environment_overrides_stored_secret(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    put(client)
    told = settings.model_copy(update={"hub_token": SecretStr("hf_of_the_environment")})

    page = parse_page(TestClient(create_app(engine, told)).get("/settings/secrets").text)

    assert used(engine, told) == "hf_of_the_environment"
    assert "from the environment" in page.one(id="hub_token").text


def test_deleted_secret_is_not_used(client: TestClient, engine: Engine, settings: Settings) -> None:
    put(client)

    client.post("/settings/secrets/hub_token/forget")

    assert used(engine, settings) == ""
    assert client.delete("/api/v1/secrets/hub_token").status_code == 404


@pytest.mark.parametrize("value", ["", " ", "two\nlines", "x" * 5000])
def test_invalid_secret_is_rejected_and_not_echoed(client: TestClient, value: str) -> None:
    answer = client.post("/settings/secrets/hub_token", data={"value": value})

    assert answer.status_code == 422
    assert "xxxxx" not in answer.text
    assert "xxxxx" not in client.put("/api/v1/secrets/s3_key", json={"value": value}).text


def test_unknown_secret_name_is_rejected(client: TestClient) -> None:
    assert client.post("/settings/secrets/home", data={"value": "/"}).status_code == 404
    assert client.put("/api/v1/secrets/home", json={"value": "/"}).status_code == 422


def test_files_and_backups_do_not_contain_plaintext_secret(
    client: TestClient, engine: Engine, settings: Settings, tmp_path: Path
) -> None:
    put(client)
    engine.dispose()
    files = [path for path in settings.home.rglob("*") if path.is_file()]

    backups.create(settings, tmp_path / "backup", BackupOptions(packed=False), lambda _bytes: None)

    kept = [path for path in (tmp_path / "backup").rglob("*") if path.is_file()]
    assert [path.name for path in [*files, *kept] if TOKEN.encode() in path.read_bytes()] == []
    assert "secret_key" not in {path.name for path in kept}


def test_each_install_has_own_private_key(tmp_path: Path) -> None:
    keys = set()
    for name in ("one", "two"):
        settings = Settings(home=tmp_path / name, allowed_hosts="testserver", sign_in="none")
        engine = open_home(settings)
        put(TestClient(create_app(engine, settings)))
        engine.dispose()
        keys.add(settings.secret_file.read_bytes())
        assert stat.S_IMODE(settings.secret_file.stat().st_mode) == 0o600
        assert stat.S_IMODE(settings.home.stat().st_mode) & 0o077 == 0

    assert len(keys) == 2


def test_missing_key_is_reported_and_not_regenerated(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    put(client)
    key = settings.secret_file.read_bytes()
    settings.secret_file.unlink()

    shown = parse_page(client.get("/settings/secrets").text).one(id="hub_token").text
    refused = client.put("/api/v1/secrets/s3_key", json={"value": "another"})

    assert "is missing. Restore the file, or remove this secret" in shown
    assert used(engine, settings) == ""
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "conflict")
    settings.secret_file.write_bytes(key)
    assert used(engine, settings) == TOKEN


def test_wrong_key_is_reported_and_secret_is_not_used(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    put(client)
    other = settings.model_copy(update={"secret_key": SecretStr("k" * 32)})

    listed = TestClient(create_app(engine, other)).get("/api/v1/secrets").json()["data"]

    trouble = {one["name"]: one["trouble"] for one in listed}["hub_token"]
    assert "encrypted with a different key" in trouble
    assert used(engine, other) == ""
    with (
        read_session(engine) as db,
        pytest.raises(UnavailableError, match="encrypted with a different key"),
    ):
        secrets.settings_with_required(db, other, ["hub_token"])


def test_secret_copied_to_another_name_is_ignored(
    client: TestClient, engine: Engine, settings: Settings
) -> None:
    """Whoever writes the database cannot have one service shown what belongs to another."""
    put(client, "smtp_url", "smtp://studio:hush@mail.example.org")
    with engine.begin() as connection:
        connection.exec_driver_sql("UPDATE secret SET name = 'webhook_url'")

    assert used(engine, settings, "webhook_url") == ""


def test_only_administrators_can_set_secrets(engine: Engine, settings: Settings) -> None:
    home = make_visitors(engine, settings, "accounts")
    form = {"value": TOKEN}

    asked = {
        role: home.person(role, role).post("/settings/secrets/hub_token", data=form).status_code
        for role in Role
    }
    by_token = home.program(Scope.MANAGE, "ann").get("/api/v1/secrets").status_code

    assert asked == {Role.VIEWER: 403, Role.MEMBER: 403, Role.ADMINISTRATOR: 303}
    assert by_token == 403


def test_idempotent_request_does_not_store_secret(client: TestClient, engine: Engine) -> None:
    client.put(
        "/api/v1/secrets/hub_token",
        json={"value": TOKEN},
        headers={"Idempotency-Key": "once"},
    )

    with engine.connect() as connection:
        dump = json.dumps(
            [
                [str(cell) for cell in row]
                for table in ("receipt", "deed", "secret")
                for row in connection.exec_driver_sql(f"SELECT * FROM {table}")  # noqa: S608 -- our own names
            ]
        )
    assert TOKEN not in dump
