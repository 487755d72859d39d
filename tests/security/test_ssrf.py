"""Addresses that lead inside, in all the ways they can be written; nothing is connected to."""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlmodel import Session

from studio import data_sources
from studio.errors import InvalidError, StudioError
from studio.network import safe_http
from studio.network.internal_networks import INTERNAL_NETWORKS
from studio.services.datasets import import_sources as services
from studio.settings import Settings
from tests.security.raw_requests import Target

pytestmark = pytest.mark.smoke

INSIDE = st.sampled_from(
    [row.network for row in INTERNAL_NETWORKS if isinstance(row.network, IPv4Network)]
).flatmap(lambda network: st.ip_addresses(v=4, network=network))


def _hex(ip: IPv4Address) -> str:
    return f"{int(ip):08x}"


WRITTEN: dict[str, Callable[[IPv4Address], str]] = {
    "plain": str,
    "number": lambda ip: str(int(ip)),
    "hexadecimal": lambda ip: hex(int(ip)),
    "octal": lambda ip: ".".join(f"0{int(part):o}" for part in str(ip).split(".")),
    "hexadecimal parts": lambda ip: ".".join(hex(int(part)) for part in str(ip).split(".")),
    "full width": lambda ip: str(ip).translate({48 + i: 0xFF10 + i for i in range(10)}),
    "mapped": lambda ip: f"[::ffff:{ip}]",
    "compatible": lambda ip: f"[::{_hex(ip)[:4]}:{_hex(ip)[4:]}]",
    "nat64": lambda ip: f"[64:ff9b::{_hex(ip)[:4]}:{_hex(ip)[4:]}]",
    "6to4": lambda ip: f"[2002:{_hex(ip)[:4]}:{_hex(ip)[4:]}::]",
    "after a name": lambda ip: f"example.org@{ip}",
    "after a password": lambda ip: f"example.org:80@{ip}",
}


@settings(max_examples=60, deadline=None)
@given(ip=INSIDE, way=st.sampled_from(sorted(WRITTEN)))
def test_internal_ipv4_address_is_rejected_in_every_notation(ip: IPv4Address, way: str) -> None:
    with pytest.raises(StudioError):
        safe_http.post(f"http://{WRITTEN[way](ip)}/", b"", {}, seconds=5, allow_internal=False)


@settings(max_examples=40, deadline=None)
@given(
    ip=st.sampled_from(
        [row.network for row in INTERNAL_NETWORKS if isinstance(row.network, IPv6Network)]
    ).flatmap(lambda network: st.ip_addresses(v=6, network=network))
)
def test_internal_ipv6_address_is_rejected(ip: IPv6Address) -> None:
    with pytest.raises(InvalidError):
        safe_http.post(f"http://[{ip}]/", b"", {}, seconds=5, allow_internal=False)


@settings(max_examples=30, deadline=None)
@given(
    scheme=(
        st.sampled_from(
            ["file", "nfs", "ftp", "gopher", "dict", "jdbc:mysql", "jdbc:h2:mem", "sqlite", "data"]
        )
        | st.sampled_from(["javascript", "hf+file", "postgresql", "smb", "ldap", "FILE", " file"])
    ),
    rest=st.sampled_from(["///etc/passwd", "//127.0.0.1/x", ":/etc/x", "//x?autoDeserialize=true"]),
)
def test_dataset_url_with_other_scheme_is_rejected(place: Target, scheme: str, rest: str) -> None:
    source = {"kind": "url", "url": f"{scheme}:{rest}"}
    answer = place.client.post("/api/v1/datasets", json={"source": source})

    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")


@pytest.mark.parametrize("kind", ["jdbc", "sql", "sqlite", "postgresql", "file", "ftp", ""])
def test_database_sources_are_rejected(place: Target, kind: str) -> None:
    source = {"kind": kind, "url": "jdbc:mysql://x?autoDeserialize=true"}

    assert place.client.post("/api/v1/datasets", json={"source": source}).status_code == 422


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../../etc/passwd", "/proc/self/environ", "studio.db", "a\x00b"]
)
def test_import_path_outside_open_folders_is_rejected(tmp_path: Path, path: str) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "studio.db").touch()

    for one in (path, f"{tmp_path}/open/{path}", f"{tmp_path}/open/../{path}"):
        with pytest.raises(InvalidError):
            data_sources.resolve_inside([tmp_path / "open"], one)


def test_no_import_folder_is_open_by_default() -> None:
    assert Settings().import_folders == ()


@pytest.mark.parametrize(
    "source",
    [
        {"kind": "hub", "id": "a/b"},
        {"kind": "s3", "url": "s3://bucket/rows.csv"},
        {"kind": "url", "url": "https://example.org/rows.csv"},
    ],
    ids=["hub", "s3", "url"],
)
@pytest.mark.parametrize("field", ["endpoint", "proxy", "headers", "verify", "allow_internal"])
def test_dataset_source_cannot_set_request_options(
    place: Target, field: str, source: dict[str, str]
) -> None:
    asked = {"source": source | {field: "http://169.254.169.254"}}

    assert place.client.post("/api/v1/datasets", json=asked).status_code == 422


@pytest.mark.parametrize(
    "bucket",
    [
        "evil.example.org:80",
        "me@evil.example.org",
        "arn:aws:s3:evil.example.org:1:accesspoint",
        "a%2fb",
        "[::1]",
        "..",
    ],
)
def test_s3_bucket_cannot_name_other_host(settings: Settings, db: Session, bucket: str) -> None:
    pytest.importorskip("s3fs", reason="the extra s3 is not installed")
    with pytest.raises(InvalidError, match="does not have the form s3://bucket/key"):
        services.enqueue_import(db, settings, data_sources.S3Source(url=f"s3://{bucket}/rows.csv"))
