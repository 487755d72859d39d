"""A worker is killed while a message is on its way: it is not lost, and can be told as a repeat."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import Engine
from sqlmodel import Session, select

from studio.db.outbox import Channel, Delivery, DeliveryAttempt, DeliveryStatus
from studio.db.session import read_session, unit_of_work
from studio.services.notifications import deliveries
from studio.services.operations import home
from studio.settings import Settings
from tests.fakes.message_receivers import WebhookReceiver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.faults


def start(folder: Path, hook: WebhookReceiver) -> subprocess.Popen[bytes]:
    set_up = {"STUDIO_WEBHOOK_URL": hook.url, "STUDIO_ALLOW_INTERNAL_ADDRESSES": "true"}
    return subprocess.Popen(
        [sys.executable, "-m", "studio", "worker"],
        env=os.environ | set_up | {"STUDIO_HOME": str(folder)},
    )


def test_notification_is_resent_when_worker_is_killed_during_delivery(
    tmp_path: Path, hook: WebhookReceiver
) -> None:
    engine = home.open_home(Settings(home=tmp_path))
    hook.go_on.clear()
    with unit_of_work(engine) as db:
        deliveries.enqueue_test(db, Channel.WEBHOOK)
    first = start(tmp_path, hook)
    wait_until(lambda: len(hook.posted) == 1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    hook.go_on.set()
    with unit_of_work(engine) as db:
        # As long as a try is waited for has passed.
        one(db).due_at -= timedelta(minutes=3)

    second = start(tmp_path, hook)
    try:
        wait_until(lambda: status(engine) == DeliveryStatus.DELIVERED)
    finally:
        second.terminate()
        second.wait()

    keys = [posted.headers["webhook-id"] for posted in hook.posted]
    assert (len(keys), len(set(keys))) == (2, 1)
    with read_session(engine) as db:
        told = [tried.words for tried in db.exec(select(DeliveryAttempt).order_by("number"))]
    engine.dispose()
    assert told == ["", "The server responded with 204 No Content."]


def one(db: Session) -> Delivery:
    return db.exec(select(Delivery)).one()


def status(engine: Engine) -> str:
    with read_session(engine) as db:
        return one(db).status
