"""How people are told: shown without a secret, on the settings page and over REST; a test sent."""

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.db.outbox import Channel
from studio.db.session import unit_of_work
from studio.services.notifications import deliveries
from studio.services.notifications.deliveries import DeliveryResult
from studio.settings import Settings
from studio.web.app import create_app
from tests.support.factories import make_finished_run
from tests.support.page_reader import Node, parse_page

SECRETS = ("T0SECRET", "c2VjcmV0LXNpZ25pbmcta2V5LTEyMzQ", "PASSW0RD")


@pytest.fixture
def set_up(engine: Engine, settings: Settings) -> TestClient:
    """Give a studio that tells people by both ways."""
    told = {
        "webhook_url": SecretStr(f"https://hooks.example.org/services/{SECRETS[0]}"),
        "webhook_secret": SecretStr(SECRETS[1]),
        "smtp_url": SecretStr(f"smtp://studio:{SECRETS[2]}@mail.example.org"),
        "notify_email": "ann@example.org",
    }
    return TestClient(create_app(engine, settings.model_copy(update=told)))


def notices(client: TestClient) -> Node:
    return parse_page(client.get("/settings").text).one("section", id="notices")


def test_channels_are_listed_without_secrets(set_up: TestClient) -> None:
    told = set_up.get("/api/v1/notifications").json()

    assert [(way["channel"], way["is_on"], way["goes_to"]) for way in told["data"]] == [
        ("webhook", True, "https://hooks.example.org/…"),
        ("email", True, "ann@example.org, sent through mail.example.org"),
    ]


@pytest.mark.parametrize("path", ["/settings", "/api/v1/notifications", "/api/v1/deliveries"])
def test_secrets_are_never_shown(set_up: TestClient, path: str) -> None:
    text = set_up.get(path).text

    assert [secret for secret in SECRETS if secret in text] == []


def test_disabled_channels_show_setup_hint(client: TestClient) -> None:
    said = [card.one("p").text for card in notices(client).all("article")]

    assert said[:2] == [
        "Set STUDIO_WEBHOOK_URL and STUDIO_WEBHOOK_SECRET to enable.",
        "Set STUDIO_SMTP_URL and STUDIO_NOTIFY_EMAIL to enable.",
    ]


def test_test_message_is_queued_for_worker(set_up: TestClient) -> None:
    answer = set_up.post("/api/v1/deliveries/test", json={"channel": "email"})

    told = set_up.get(f"/api/v1/deliveries/{answer.json()['id']}").json()
    assert (answer.status_code, told["event"], told["status"]) == (202, "test", "waiting")
    assert told["tries"] == []


def test_test_message_to_disabled_channel_is_rejected(client: TestClient) -> None:
    answer = client.post("/api/v1/deliveries/test", json={"channel": "webhook"})

    assert (answer.status_code, answer.json()["error"]["message"]) == (
        409,
        "Webhook is not set up.",
    )


def test_test_button_shows_queued_message(set_up: TestClient) -> None:
    answer = set_up.post(
        "/settings/notices/test",
        data={"channel": "webhook"},
        headers={"HX-Request": "true", "HX-Request-Type": "partial"},
    )

    [row] = parse_page(answer.text).one("tbody").all("tr")
    cells = [cell.text for cell in row.all("td")]
    assert cells[:4] == ["webhook", "○ waiting", "Waiting for the worker.", "0"]


def test_delivery_results_are_listed(client: TestClient, engine: Engine) -> None:
    with unit_of_work(engine) as db:
        make_finished_run(db)
        deliveries.drop_disabled_channels(db, [Channel.WEBHOOK])
        [written] = deliveries.newest(db, limit=9)
        taken = deliveries.begin_attempt(db, written.id or 0, written.due_at)
        assert taken is not None
        answer = DeliveryResult(is_ok=True, words="The server responded with 200 OK.")
        deliveries.record_result(db, taken[1], answer, written.due_at)

    [row] = notices(client).one("tbody").all("tr")
    assert [cell.text for cell in row.all("td")][:4] == [
        "webhook",
        "✓ delivered",
        "The server responded with 200 OK.",
        "1",
    ]
    [told] = client.get("/api/v1/deliveries").json()["data"]
    assert (told["status"], [one["words"] for one in told["tries"]]) == (
        "delivered",
        ["The server responded with 200 OK."],
    )


def test_missing_worker_shows_warning(set_up: TestClient) -> None:
    assert notices(set_up).one("strong").text == ("No worker is running, so no messages are sent.")
