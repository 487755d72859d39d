"""Mail that travels in secret: to a server that can prove who it is, and to no other."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from pydantic import SecretStr

from studio.db.outbox import Channel, Delivery
from studio.services.notifications.deliveries import TEST, DeliveryResult
from studio.settings import Settings
from studio.worker import notifications
from tests.fakes.message_receivers import MailServer, run_mail_server

SCHEMES = ("smtp", "smtps")
"""Encrypted when asked to be, and from the first byte."""


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """Make one that this machine trusts, as an administrator adds one."""
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "trusted.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "trusted.pem"))
    return made


def proof(authority: trustme.CA, name: str) -> ssl.SSLContext:
    """Return what a server of that name encrypts with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def send(post: MailServer) -> DeliveryResult:
    settings = Settings(smtp_url=SecretStr(post.url), notify_email="ann@example.org")
    delivery = Delivery(key="k", channel=Channel.EMAIL, event=TEST, created_at=datetime.now(UTC))
    return notifications.deliver(delivery, settings, datetime.now(UTC))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_mail_to_trusted_server_is_encrypted(authority: trustme.CA, scheme: str) -> None:
    with run_mail_server(scheme, proof(authority, "127.0.0.1")) as post:
        answer = send(post)

    assert answer == DeliveryResult(is_ok=True, words="The server accepted the mail.")
    assert post.were_encrypted == [True]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.usefixtures("authority")
def test_mail_is_not_sent_to_server_with_untrusted_certificate(scheme: str) -> None:
    with run_mail_server(scheme, proof(trustme.CA(), "127.0.0.1")) as post:
        answer = send(post)

    assert (answer.is_ok, post.mails) == (False, [])
    assert answer.words == (
        "The server's certificate could not be verified: unable to get local issuer certificate."
    )


@pytest.mark.parametrize("scheme", SCHEMES)
def test_mail_is_not_sent_when_certificate_name_differs(authority: trustme.CA, scheme: str) -> None:
    with run_mail_server(scheme, proof(authority, "mail.example.org")) as post:
        answer = send(post)

    assert (answer.is_ok, post.mails) == (False, [])
    assert answer.words == (
        "The server's certificate could not be verified: IP address mismatch, certificate is not "
        "valid for '127.0.0.1'."
    )
