"""Send a notification as a short plain-text mail: a sentence and a link."""

import smtplib
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from email.message import EmailMessage
from email.utils import format_datetime
from ipaddress import ip_address
from urllib.parse import SplitResult, unquote, urlsplit

from studio.db.outbox import Delivery
from studio.errors import InvalidError, StudioError
from studio.services.notifications.deliveries import TEST, DeliveryResult
from studio.settings import Settings
from studio.worker.notifications.webhook import run_url

TIMEOUT_SECONDS = 20.0
DEFAULT_PORTS = {"smtp": 587, "smtps": 465}

SENTENCES = {
    "run.succeeded": "Run {id}, {name}, succeeded.",
    "run.failed": "Run {id}, {name}, failed.",
    "run.cancelled": "Run {id}, {name}, was cancelled.",
    "run.paused": "Run {id}, {name}, paused automatically.",
    TEST: "This is a test. Mail notifications about your runs work.",
}


def send(delivery: Delivery, settings: Settings) -> DeliveryResult:
    """Send the mail once. Return the result with the server's response as text."""
    try:
        server_url = _parse_url(settings.smtp_url.get_secret_value())
        message = build_message(delivery, settings, server_url)
        with _connect(server_url) as server:
            refused = server.send_message(message)
    except StudioError as error:
        return DeliveryResult(is_ok=False, words=f"{error.message} {error.hint}".strip())
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
