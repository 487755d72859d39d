"""Send a message as a short mail: a sentence and a link, in plain text."""

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
    "run.succeeded": "Run {id}, {name}, has succeeded.",
    "run.failed": "Run {id}, {name}, has failed.",
    "run.cancelled": "Run {id}, {name}, was cancelled.",
    "run.paused": "Run {id}, {name}, has paused by itself.",
    TEST: "This is a test. Mails about your runs arrive.",
}


def send(delivery: Delivery, settings: Settings) -> DeliveryResult:
    """Hand the mail over once, and say in words what came back."""
    try:
        where = _parse_url(settings.smtp_url.get_secret_value())
        message = build_message(delivery, settings, where)
        with _connect(where) as server:
            refused = server.send_message(message)
    except StudioError as error:
        return DeliveryResult(is_ok=False, words=f"{error.message} {error.hint}".strip())
    except smtplib.SMTPResponseException as error:
        return DeliveryResult(
            is_ok=False, words=f"The server answered {error.smtp_code}: {_server_reply(error)}."
        )
    except smtplib.SMTPRecipientsRefused as error:
        return DeliveryResult(
            is_ok=False, words=f"The server refused {', '.join(error.recipients)}."
        )
    except UnicodeError:
        return DeliveryResult(
            is_ok=False, words="Name or password hold letters that mail cannot carry."
        )
    except (OSError, smtplib.SMTPException) as error:
        return DeliveryResult(is_ok=False, words=_connection_error(error))
    but = f", except for {', '.join(refused)}" if refused else ""
    return DeliveryResult(is_ok=True, words=f"The server took the mail{but}.")


def build_message(delivery: Delivery, settings: Settings, where: SplitResult) -> EmailMessage:
    """Write the mail. Its id is the same on every try."""
    recipients = [name.strip() for name in settings.notify_email.split(",")]
    sentence = SENTENCES[delivery.event].format(**delivery.data)
    user = unquote(where.username or "")
    sender = user if "@" in user else recipients[0]
    message = EmailMessage()
    # A name may hold a line break, which a header may not.
    message["Subject"] = " ".join(sentence.split())
    message["From"], message["To"] = sender, ", ".join(recipients)
    message["Date"] = format_datetime(delivery.created_at)
    message["Message-ID"] = f"<{delivery.key}@{sender.rpartition('@')[2]}>"
    error = delivery.data.get("error") or {}
    why = " ".join(filter(None, (error.get("message"), error.get("hint"))))
    parts = (sentence, why, run_url(delivery, settings))
    message.set_content("\n\n".join(filter(None, parts)) + "\n")
    return message


def _parse_url(url: str) -> SplitResult:
    where = urlsplit(url)
    if where.scheme not in DEFAULT_PORTS or not where.hostname:
        raise InvalidError(
            "STUDIO_SMTP_URL is no mail server.", hint="Write it as smtp://name:password@host:587"
        )
    return where


@contextmanager
def _connect(where: SplitResult) -> Iterator[smtplib.SMTP]:
    """Connect, encrypt where the server can, and sign in; a password never travels in clear."""
    host, port = where.hostname or "", where.port or DEFAULT_PORTS[where.scheme]
    context = ssl.create_default_context()
    is_encrypted = where.scheme == "smtps"
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
        if where.username:
            if not is_encrypted and not _is_loopback(host):
                raise InvalidError(f"{host} would get the password in clear.", hint="Use smtps://")
            server.login(unquote(where.username), unquote(where.password or ""))
        yield server
        # The mail is taken: how the server says farewell does not change that.
        with suppress(OSError, smtplib.SMTPException):
            server.quit()


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _connection_error(error: OSError | smtplib.SMTPException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"The server cannot prove who it is: {error.verify_message.rstrip('.')}."
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"The server could not be reached: {reason}."


def _server_reply(error: smtplib.SMTPResponseException) -> str:
    said = error.smtp_error
    return (said.decode(errors="replace") if isinstance(said, bytes) else said).rstrip(".")
