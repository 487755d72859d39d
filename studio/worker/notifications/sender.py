"""The thread that sends pending notifications, next to the worker's loop."""

import logging
import threading
from datetime import UTC, datetime

from sqlalchemy import Engine

from studio.db.outbox import Channel, Delivery
from studio.db.session import read_session, unit_of_work
from studio.errors import UnavailableError
from studio.services.accounts import secrets
from studio.services.notifications import channels, deliveries
from studio.services.notifications.deliveries import DeliveryResult
from studio.settings import Settings
from studio.worker.fault_isolation import FaultIsolation, catch_errors
from studio.worker.notifications import mail, webhook

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0


class NotificationSender:
    """Sends notifications one at a time until stopped."""

    def __init__(
        self, engine: Engine, settings: Settings, isolation: FaultIsolation | None = None
    ) -> None:
        self._engine = engine
        self._isolation = isolation or FaultIsolation()
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._last_error = ""

    def ensure_running(self, stop: threading.Event) -> None:
        """Start the thread, or restart it if an error has ended it; the log has the traceback."""
        if self._thread is None or not self._thread.is_alive():
            # A daemon thread ends with the process; the next one retries what was not sent.
            self._thread = threading.Thread(
                target=self._run, args=(stop,), name="messenger", daemon=True
            )
            self._thread.start()

    def _run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            with self._isolation.step("messages", "outbox"):
                while not stop.is_set() and self._send_next():
                    pass
            stop.wait(POLL_SECONDS)

    def _send_next(self) -> bool:
        """Send the next notification with the current secrets; if they cannot be read, all wait."""
        try:
            with read_session(self._engine) as db:
                settings = secrets.settings_with_required(
                    db, self._settings, channels.SECRET_SETTINGS
                )
        except UnavailableError as error:
            if error.message != self._last_error:
                log.warning("messages_wait", extra={"reason": error.message, "hint": error.hint})
            self._last_error = error.message
            return False
        self._last_error = ""
        return send_next(self._engine, settings, datetime.now(UTC), channels.list_enabled(settings))


def send_next(
    engine: Engine, settings: Settings, now: datetime, enabled: tuple[Channel, ...]
) -> bool:
    """Send the notification that has been due the longest. Return whether there was one."""
    with read_session(engine) as db:
        next_id = deliveries.next_due(db, now)
    if next_id is None:
        return False
    with unit_of_work(engine) as db:
        deliveries.drop_disabled_channels(db, enabled)
        started = deliveries.begin_attempt(db, next_id, now)
    if started is None:
        return True
    delivery, attempt = started
    result = _send_safely(delivery, settings, now)
    with unit_of_work(engine) as db:
        recorded = deliveries.record_result(db, attempt, result, now)
    log_fields = {"key": delivery.key, "channel": delivery.channel, "run_id": delivery.run_id}
    log.info(
        "message_tried",
        extra=log_fields
        | {"status": recorded.status, "number": attempt.number, "answer": result.words},
    )
    return True


def _send_safely(delivery: Delivery, settings: Settings, now: datetime) -> DeliveryResult:
    """Send a notification; an internal error must not block the next one."""
    with catch_errors() as errors:
        return _send(delivery, settings, now)
    log.error("message_not_sent", extra={"key": delivery.key}, exc_info=errors[0])
    return DeliveryResult(
        is_ok=False, words=f"The studio could not send it: {type(errors[0]).__name__}."
    )


def _send(delivery: Delivery, settings: Settings, now: datetime) -> DeliveryResult:
    match delivery.channel:
        case Channel.WEBHOOK:
            return webhook.send(delivery, settings, now)
        case _:
            return mail.send(delivery, settings)
