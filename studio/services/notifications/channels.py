"""Notification channels as configured by the operator, without their secrets."""

from dataclasses import dataclass
from urllib.parse import urlsplit

from sqlmodel import Session

from studio.db.outbox import Channel, Delivery
from studio.errors import ConflictError
from studio.network import safe_http
from studio.services.notifications import deliveries
from studio.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelStatus:
    """The configuration of one channel, as shown to users."""

    channel: Channel
    title: str
    is_on: bool
    goes_to: str
    """The destination, without secrets; empty if it is off."""
    note: str = ""
    """A remark on its configuration."""
    how: str
    """How to set it up."""


SECRET_SETTINGS = ("webhook_url", "webhook_secret", "smtp_url")
"""The settings of channels that are secret."""


def list_enabled(settings: Settings) -> tuple[Channel, ...]:
    """Return the channels that are set up."""
    return tuple(status.channel for status in list_channels(settings) if status.is_on)


def list_channels(settings: Settings) -> tuple[ChannelStatus, ...]:
    return (_webhook(settings), _email(settings))


def send_test(db: Session, settings: Settings, channel: Channel) -> Delivery:
    """Queue a test message.

    Raises:
        ConflictError: The channel is not set up.

    """
    status = next(status for status in list_channels(settings) if status.channel is channel)
    if not status.is_on:
        raise ConflictError(f"{status.title} is not set up.", hint=f"Set {status.how}.")
    return deliveries.enqueue_test(db, channel)


def _webhook(settings: Settings) -> ChannelStatus:
    url = settings.webhook_url.get_secret_value()
    notes = []
    if url and not settings.webhook_secret.get_secret_value():
        notes.append("Unsigned: set STUDIO_WEBHOOK_SECRET.")
    if url and settings.allow_internal_addresses:
        notes.append("Internal addresses are allowed.")
    return ChannelStatus(
        channel=Channel.WEBHOOK,
        title="Webhook",
        is_on=bool(url),
        goes_to=safe_http.redact_url(url) if url else "",
        note=" ".join(notes),
        how="STUDIO_WEBHOOK_URL and STUDIO_WEBHOOK_SECRET",
    )


def _email(settings: Settings) -> ChannelStatus:
    url = settings.smtp_url.get_secret_value()
    is_on = bool(url and settings.notify_email)
    host = urlsplit(url).hostname
    return ChannelStatus(
        channel=Channel.EMAIL,
        title="Email",
        is_on=is_on,
        goes_to=f"{settings.notify_email} via {host}" if is_on else "",
        note=""
        if is_on or not (url or settings.notify_email)
        else "Only one of the two settings is set.",
        how="STUDIO_SMTP_URL and STUDIO_NOTIFY_EMAIL",
    )
