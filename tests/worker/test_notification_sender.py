"""Messages, sent to real servers on this machine."""

import base64
import hashlib
import hmac
import json
import socket
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import SecretStr
from sqlalchemy import Engine

from studio.db.outbox import Channel, Delivery, DeliveryAttempt, DeliveryStatus
from studio.db.session import read_session, unit_of_work
from studio.db.states import RunStatus
from studio.protocols.events import Failed
from studio.services.notifications import deliveries
from studio.services.runs import attempts, states
from studio.settings import Settings
from studio.worker.notifications import NotificationSender, send_next
from tests.fakes.message_receivers import MailServer, WebhookReceiver
from tests.support.factories import make_finished_run, make_running
from tests.support.waiting import wait_until

KEY = b"0123456789abcdef01234567"
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
SOON = timedelta(minutes=1)

Set = Callable[..., Settings]


@pytest.fixture
def given(settings: Settings) -> Set:
    """Set the studio up to tell people."""

    def make(**values: Any) -> Settings:  # noqa: ANN401 -- any setting
        usual = {"allow_internal_addresses": True, "public_url": "https://studio.example.org/"}
        secret = {
            name: SecretStr(value)
            if name in ("webhook_url", "webhook_secret", "smtp_url")
            else value
            for name, value in values.items()
        }
        return settings.model_copy(update=usual | secret)

    return make


def send_all(engine: Engine, settings: Settings, now: datetime) -> None:
    while send_next(engine, settings, now, deliveries.list_enabled(settings)):
        pass


def send_done(engine: Engine, settings: Settings, name: str = "first try") -> datetime:
    """Let a run succeed, and send what is due. Return when that was."""
    with unit_of_work(engine) as db:
        make_finished_run(db, name)
    now = datetime.now(UTC)
    send_all(engine, settings, now)
    return now


def outcome(engine: Engine) -> tuple[Delivery, list[DeliveryAttempt]]:
    """Return the only message there is, and its tries."""
    with read_session(engine) as db:
        [one] = deliveries.newest(db, limit=2)
        return one, deliveries.list_attempts(db, [one])[one.id or 0]


def words(engine: Engine) -> list[str]:
    return [one.words for one in outcome(engine)[1]]


def test_webhook_reports_run_result(engine: Engine, given: Set, hook: WebhookReceiver) -> None:
    send_done(engine, given(webhook_url=f"{hook.url}/in?team=a"))

    [posted] = hook.posted
    told = json.loads(posted.content)
    assert (posted.path, told["type"]) == ("/in?team=a", "run.succeeded")
    assert {name: told["data"][name] for name in ("id", "name", "status", "error", "url")} == {
        "id": 1,
        "name": "first try",
        "status": "succeeded",
        "error": None,
        "url": "https://studio.example.org/runs/1",
    }
    assert told["data"]["metrics"] == {"loss": 2.0}
    assert (outcome(engine)[0].status, words(engine)) == (
        DeliveryStatus.DELIVERED,
        ["The server responded with 204 No Content."],
    )


def test_webhook_signature_follows_standard_webhooks(
    engine: Engine, given: Set, hook: WebhookReceiver
) -> None:
    now = send_done(engine, given(webhook_url=hook.url, webhook_secret=SECRET))

    [posted] = hook.posted
    key, at = posted.headers["webhook-id"], posted.headers["webhook-timestamp"]
    signed = hmac.new(KEY, f"{key}.{at}.".encode() + posted.content, hashlib.sha256).digest()
    assert posted.headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    assert int(at) == int(now.timestamp())


def test_invalid_webhook_secret_is_reported(
    engine: Engine, given: Set, hook: WebhookReceiver
) -> None:
    send_done(engine, given(webhook_url=hook.url, webhook_secret=SECRET + "!"))

    assert words(engine) == [
        "STUDIO_WEBHOOK_SECRET is not base64. Create one: openssl rand -base64 32"
    ]


def test_failed_webhook_is_retried_with_same_id(
    engine: Engine, given: Set, hook: WebhookReceiver
) -> None:
    hook.answers = [500, 302]
    settings = given(webhook_url=hook.url)
    now = send_done(engine, settings)
    for _ in range(2):
        now += SOON
        send_all(engine, settings, now)

    assert words(engine) == [
        "The server responded with 500 Internal Server Error.",
        "The server responded with 302 Found; redirects are not followed.",
        "The server responded with 204 No Content.",
    ]
    assert len({one.headers["webhook-id"] for one in hook.posted}) == 1
    assert len({one.content for one in hook.posted}) == 1


def test_delivered_notification_is_not_resent(
    engine: Engine, given: Set, hook: WebhookReceiver
) -> None:
    settings = given(webhook_url=hook.url)
    now = send_done(engine, settings)
    send_all(engine, settings, now + timedelta(days=2))

    assert len(hook.posted) == 1


def test_webhook_to_internal_address_is_blocked(
    engine: Engine, given: Set, hook: WebhookReceiver
) -> None:
    send_done(engine, given(webhook_url=hook.url, allow_internal_addresses=False))

    assert hook.posted == []
    [said] = words(engine)
    assert said.startswith("127.0.0.1 is an internal address, which is blocked. ")


def test_no_delivery_is_stored_without_channels(engine: Engine, given: Set) -> None:
    send_done(engine, given())

    with read_session(engine) as db:
        assert deliveries.newest(db, limit=1) == []


def test_mail_contains_sentence_and_link(engine: Engine, given: Set, post: MailServer) -> None:
    send_done(engine, given(smtp_url=post.url, notify_email="ann@example.org, bob@example.org"))

    [mail] = post.mails
    assert mail["Subject"] == "Run 1, first try, succeeded."
    assert mail.get_content().splitlines() == [
        "Run 1, first try, succeeded.",
        "",
        "https://studio.example.org/runs/1",
    ]
    assert post.recipients == ["ann@example.org", "bob@example.org"]
    assert words(engine) == ["The server accepted the mail."]


def test_mail_includes_failure_reason(engine: Engine, given: Set, post: MailServer) -> None:
    with unit_of_work(engine) as db:
        why = Failed(code="killed", message="It was killed.", hint="Try again.")
        attempts.fail(db, make_running(db), why)
    send_all(engine, given(smtp_url=post.url, notify_email="a@example.org"), datetime.now(UTC))

    assert post.mails[0].get_content().splitlines()[2] == "It was killed. Try again."


def test_run_name_cannot_inject_mail_headers(engine: Engine, given: Set, post: MailServer) -> None:
    with unit_of_work(engine) as db:
        # As a program might name it that writes the database itself.
        run = make_running(db)
        run.name = "x\r\nBcc: eve@example.org"
        states.move(db, run, RunStatus.SUCCEEDED)
    send_all(engine, given(smtp_url=post.url, notify_email="a@example.org"), datetime.now(UTC))

    assert post.recipients == ["a@example.org"]
    assert post.mails[0]["Subject"] == "Run 1, x Bcc: eve@example.org, succeeded."


def test_rejected_mail_is_resent_with_same_message_id(
    engine: Engine, given: Set, post: MailServer
) -> None:
    post.answers = ["451 Come back later."]
    settings = given(smtp_url=post.url, notify_email="a@example.org")
    now = send_done(engine, settings)
    send_all(engine, settings, now + SOON)

    assert words(engine) == [
        "The server responded with 451: Come back later.",
        "The server accepted the mail.",
    ]
    assert post.mails[0]["Message-ID"] == f"<{outcome(engine)[0].key}@example.org>"


def test_wrong_mail_password_is_reported(engine: Engine, given: Set, post: MailServer) -> None:
    url = post.url.replace("hush%20hush", "guess")
    send_done(engine, given(smtp_url=url, notify_email="a@example.org"))

    assert words(engine) == ["The server responded with 535: Wrong password."]


def test_unreachable_mail_server_is_reported(engine: Engine, given: Set) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"smtp://127.0.0.1:{taken.getsockname()[1]}"
        send_done(engine, given(smtp_url=url, notify_email="a@example.org"))

    assert words(engine) == ["The server could not be reached: Connection refused."]


def test_channels_are_delivered_independently(
    engine: Engine, given: Set, hook: WebhookReceiver, post: MailServer
) -> None:
    hook.answers = [500]
    send_done(engine, given(webhook_url=hook.url, smtp_url=post.url, notify_email="a@example.org"))

    with read_session(engine) as db:
        told = {one.channel: one.status for one in deliveries.newest(db, limit=9)}
    assert told == {Channel.EMAIL: "delivered", Channel.WEBHOOK: "waiting"}


def test_background_thread_sends_new_notifications(
    engine: Engine, given: Set, hook: WebhookReceiver
) -> None:
    stop = threading.Event()
    messenger = NotificationSender(engine, given(webhook_url=hook.url))
    messenger.ensure_running(stop)
    try:
        with unit_of_work(engine) as db:
            deliveries.enqueue_test(db, Channel.WEBHOOK)
        wait_until(lambda: outcome(engine)[0].status == DeliveryStatus.DELIVERED)
    finally:
        stop.set()
        assert messenger._thread is not None
        messenger._thread.join()

    assert json.loads(hook.posted[0].content)["type"] == "test"
