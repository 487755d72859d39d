"""Post a notification as JSON, signed as Standard Webhooks specifies (standardwebhooks.com, v1)."""

import base64
import binascii
import hashlib
import hmac
import json
from datetime import datetime
from http import HTTPStatus
from typing import Any

from studio.db.outbox import Delivery
from studio.errors import InvalidError, StudioError
from studio.network import safe_http
from studio.services.notifications.deliveries import DeliveryResult
from studio.settings import Settings

TIMEOUT_SECONDS = 20.0
SECRET_PREFIX = "whsec_"  # noqa: S105 -- the prefix of every secret


def send(delivery: Delivery, settings: Settings, now: datetime) -> DeliveryResult:
    """Post the notification once. Return the result with the server's response as text."""
    content = json.dumps(_payload(delivery, settings), allow_nan=False).encode()
    try:
        status = safe_http.post(
            settings.webhook_url.get_secret_value(),
            content,
            _headers(delivery.key, content, settings, now),
            seconds=TIMEOUT_SECONDS,
            allow_internal=settings.allow_internal_addresses,
        )
    except StudioError as error:
        return DeliveryResult(is_ok=False, words=f"{error.message} {error.hint}".strip())
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


def _headers(key: str, content: bytes, settings: Settings, now: datetime) -> dict[str, str]:
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
    text = f"The server responded with {status}{_phrase(status)}"
    if status // 100 == 2:  # noqa: PLR2004 -- HTTP's success class
        return DeliveryResult(is_ok=True, words=f"{text}.")
    if status // 100 == 3:  # noqa: PLR2004 -- HTTP's redirect class
        return DeliveryResult(is_ok=False, words=f"{text}; redirects are not followed.")
    is_gone = status == HTTPStatus.GONE
    return DeliveryResult(is_ok=False, words=f"{text}.", is_final=is_gone)


def _phrase(status: int) -> str:
    return f" {HTTPStatus(status).phrase}" if status in list(HTTPStatus) else ""
