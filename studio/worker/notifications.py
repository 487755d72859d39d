"""Send pending notifications, in a thread next to the worker's loop.

A mail is short plain text: a sentence and a link. A webhook gets JSON, signed as Standard Webhooks
specifies (standardwebhooks.com, v1).
"""

import base64
import binascii
import hashlib
import hmac
import json
import logging
import smtplib
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from sqlalchemy import Engine

from studio.db.outbox import Channel, Delivery
from studio.db.session import read_session, unit_of_work
from studio.errors import InvalidError, StudioError, UnavailableError
from studio.network import safe_http
from studio.services.accounts import secrets
from studio.services.notifications import deliveries
from studio.services.notifications.deliveries import TEST, DeliveryResult
from studio.settings import Settings
from studio.worker.fault_isolation import FaultIsolation, catch_errors

TIMEOUT_SECONDS = 20.0
DEFAULT_PORTS = {"smtp": 587, "smtps": 465}

SENTENCES = {
    "run.succeeded": "Run {id}, {name}, succeeded.",
    "run.failed": "Run {id}, {name}, failed.",
    "run.cancelled": "Run {id}, {name}, was cancelled.",
    "run.paused": "Run {id}, {name}, paused automatically.",
    TEST: "This is a test. Mail notifications about your runs work.",
}


def _send_mail(delivery: Delivery, settings: Settings) -> DeliveryResult:
    """Send the mail once. Return the result with the server's response as text."""
    try:
        server_url = _parse_url(settings.smtp_url.get_secret_value())
        message = build_message(delivery, settings, server_url)
        with _connect(server_url) as server:
            refused = server.send_message(message)
    except smtplib.SMTPResponseException as error:
        return DeliveryResult(
            is_ok=False,
            words=f"The server responded with {error.smtp_code}: {_server_reply(error)}.",
        )
    except smtplib.SMTPRecipientsRefused as error:
        return DeliveryResult(
            is_ok=False, words=f"The server rejected {', '.join(error.recipients)}."
        )
    except UnicodeError:
        return DeliveryResult(
            is_ok=False,
            words="The user name or password contains characters that mail servers do not support.",
        )
    except (OSError, smtplib.SMTPException) as error:
        return DeliveryResult(is_ok=False, words=_connection_error(error))
    exceptions = f", except for {', '.join(refused)}" if refused else ""
    return DeliveryResult(is_ok=True, words=f"The server accepted the mail{exceptions}.")


def build_message(delivery: Delivery, settings: Settings, server_url: SplitResult) -> EmailMessage:
    """Build the mail. Its Message-ID is the same on every try."""
    recipients = [name.strip() for name in settings.notify_email.split(",")]
    sentence = SENTENCES[delivery.event].format(**delivery.data)
    user = unquote(server_url.username or "")
    sender = user if "@" in user else recipients[0]
    message = EmailMessage()
    # A run's name may contain a line break, a header may not.
    message["Subject"] = " ".join(sentence.split())
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Date"] = format_datetime(delivery.created_at)
    message["Message-ID"] = f"<{delivery.key}@{sender.rpartition('@')[2]}>"
    error = delivery.data.get("error") or {}
    explanation = " ".join(filter(None, (error.get("message"), error.get("hint"))))
    parts = (sentence, explanation, run_url(delivery, settings))
    message.set_content("\n\n".join(filter(None, parts)) + "\n")
    return message


def _parse_url(url: str) -> SplitResult:
    server_url = urlsplit(url)
    if server_url.scheme not in DEFAULT_PORTS or not server_url.hostname:
        raise InvalidError(
            "STUDIO_SMTP_URL is not a mail server's URL.",
            hint="Use the form smtp://name:password@host:587",
        )
    return server_url


@contextmanager
def _connect(server_url: SplitResult) -> Iterator[smtplib.SMTP]:
    """Connect, encrypt if the server can, and sign in; never send a password unencrypted."""
    host, port = server_url.hostname or "", server_url.port or DEFAULT_PORTS[server_url.scheme]
    context = ssl.create_default_context()
    is_encrypted = server_url.scheme == "smtps"
    if is_encrypted:
        server: smtplib.SMTP = smtplib.SMTP_SSL(
            host, port, timeout=TIMEOUT_SECONDS, context=context
        )
    else:
        server = smtplib.SMTP(host, port, timeout=TIMEOUT_SECONDS)
    with closing(server):
        server.ehlo()
        if not is_encrypted and server.has_extn("starttls"):
            server.starttls(context=context)
            is_encrypted = True
        if server_url.username:
            if not is_encrypted and not _is_loopback(host):
                raise InvalidError(
                    f"{host} would receive the password unencrypted.", hint="Use smtps://"
                )
            server.login(unquote(server_url.username), unquote(server_url.password or ""))
        yield server
        # The mail has been accepted; errors while disconnecting do not change that.
        with suppress(OSError, smtplib.SMTPException):
            server.quit()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _connection_error(error: OSError | smtplib.SMTPException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"The server's certificate could not be verified: {error.verify_message.rstrip('.')}."
        )
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"The server could not be reached: {reason}."


def _server_reply(error: smtplib.SMTPResponseException) -> str:
    reply = error.smtp_error
    return (reply.decode(errors="replace") if isinstance(reply, bytes) else reply).rstrip(".")


SECRET_PREFIX = "whsec_"  # noqa: S105 -- the prefix of every secret


def _post(delivery: Delivery, settings: Settings, now: datetime) -> DeliveryResult:
    """Post the notification once. Return the result with the server's response as text."""
    content = json.dumps(_payload(delivery, settings), allow_nan=False).encode()
    status = safe_http.post(
        settings.webhook_url.get_secret_value(),
        content,
        _webhook_headers(delivery.key, content, settings, now),
        seconds=TIMEOUT_SECONDS,
        allow_internal=settings.allow_internal_addresses,
    )
    return _describe_status(status)


def sign(secret: str, key: str, timestamp: int, content: bytes) -> str:
    """Sign a notification.

    Raises:
        InvalidError: the secret is not base64.

    """
    try:
        secret_bytes = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    except binascii.Error as error:
        raise InvalidError(
            "STUDIO_WEBHOOK_SECRET is not base64.", hint="Create one: openssl rand -base64 32"
        ) from error
    signature = hmac.digest(secret_bytes, f"{key}.{timestamp}.".encode() + content, hashlib.sha256)
    return f"v1,{base64.b64encode(signature).decode()}"


def _payload(delivery: Delivery, settings: Settings) -> dict[str, Any]:
    link = {"url": run_url(delivery, settings)} if delivery.data else {}
    return {
        "type": delivery.event,
        "timestamp": delivery.created_at.isoformat(),
        "data": delivery.data | link,
    }


def run_url(delivery: Delivery, settings: Settings) -> str | None:
    """Return the URL of the run's page, if the studio's public URL is configured."""
    if not (settings.public_url and delivery.data):
        return None
    return f"{settings.public_url.rstrip('/')}/runs/{delivery.data['id']}"


def _webhook_headers(key: str, content: bytes, settings: Settings, now: datetime) -> dict[str, str]:
    timestamp = int(now.timestamp())
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "mantissa-studio",
        "webhook-id": key,
        "webhook-timestamp": str(timestamp),
    }
    secret = settings.webhook_secret.get_secret_value()
    if not secret:
        return headers
    return headers | {"webhook-signature": sign(secret, key, timestamp, content)}


def _describe_status(status: int) -> DeliveryResult:
    phrase = f" {HTTPStatus(status).phrase}" if status in list(HTTPStatus) else ""
    text = f"The server responded with {status}{phrase}"
    if status // 100 == 2:  # noqa: PLR2004 -- HTTP's success class
        return DeliveryResult(is_ok=True, words=f"{text}.")
    if status // 100 == 3:  # noqa: PLR2004 -- HTTP's redirect class
        return DeliveryResult(is_ok=False, words=f"{text}; redirects are not followed.")
    is_gone = status == HTTPStatus.GONE
    return DeliveryResult(is_ok=False, words=f"{text}.", is_final=is_gone)


log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""The least time between two looks for what is due."""

IDLE_SECONDS = 5.0
"""The most; a look comes sooner when the worker has ticked."""


class NotificationSender:
    """Sends notifications one at a time until stopped."""

    def __init__(
        self, engine: Engine, settings: Settings, isolation: FaultIsolation | None = None
    ) -> None:
        self._engine = engine
        self._isolation = isolation or FaultIsolation()
        self._settings = settings
        self._thread: threading.Thread | None = None
        self._ticked = threading.Event()
        self._last_error = ""

    def ensure_running(self, stop: threading.Event) -> None:
        """Have the thread look for what is due; start it, also again if an error has ended it."""
        self._ticked.set()
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
            if not stop.wait(POLL_SECONDS):
                self._ticked.wait(IDLE_SECONDS - POLL_SECONDS)
                self._ticked.clear()

    def _send_next(self) -> bool:
        """Send the next notification with the current secrets; if they cannot be read, all wait."""
        try:
            with read_session(self._engine) as db:
                settings = secrets.settings_with_required(
                    db, self._settings, deliveries.SECRET_SETTINGS
                )
        except UnavailableError as error:
            if error.message != self._last_error:
                log.warning("messages_wait", extra={"reason": error.message, "hint": error.hint})
            self._last_error = error.message
            return False
        self._last_error = ""
        return send_next(
            self._engine, settings, datetime.now(UTC), deliveries.list_enabled(settings)
        )


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
    result = deliver(delivery, settings, now)
    with unit_of_work(engine) as db:
        recorded = deliveries.record_result(db, attempt, result, now)
    log_fields = {"key": delivery.key, "channel": delivery.channel, "run_id": delivery.run_id}
    log.info(
        "message_tried",
        extra=log_fields
        | {"status": recorded.status, "number": attempt.number, "answer": result.words},
    )
    return True


def deliver(delivery: Delivery, settings: Settings, now: datetime) -> DeliveryResult:
    """Send a notification; an internal error must not block the next one."""
    with catch_errors() as errors:
        if delivery.channel == Channel.WEBHOOK:
            return _post(delivery, settings, now)
        return _send_mail(delivery, settings)
    if isinstance(errors[0], StudioError):
        words = f"{errors[0].message} {errors[0].hint}".strip()
    else:
        log.error("message_not_sent", extra={"key": delivery.key}, exc_info=errors[0])
        words = f"The studio could not send it: {type(errors[0]).__name__}."
    return DeliveryResult(is_ok=False, words=words)
