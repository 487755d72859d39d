"""Which networks are never asked: the whole list, its edges, and the table in the docs."""

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from pathlib import Path

import pytest

from studio.network.internal_networks import (
    INTERNAL_NETWORKS,
    InternalNetwork,
    find_internal_network,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "security.md"
ROW = re.compile(r"^\| `([0-9a-f.:/]+)` \| (.+) \|$", re.MULTILINE)
PUBLIC = [
    "8.8.8.8",
    "93.184.216.34",
    "168.63.129.15",
    "168.63.129.17",
    "192.0.1.1",
    "192.31.196.1",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "100.128.0.0",
    "172.32.0.1",
    "11.0.0.0",
    "2606:2800:220:1::1",
    "2001:200::1",
    "2001:db7::1",
    "2001:db9::1",
    "2400:cb00::1",
    "3ffe:ffff::1",
    "3fff:1000::1",
    "2620:4f:8000::1",
    "64:ff9b::5db8:d822",
    "::ffff:8.8.8.8",
]


@pytest.mark.parametrize("row", INTERNAL_NETWORKS, ids=lambda row: str(row.network))
def test_first_and_last_network_address_are_internal(row: InternalNetwork) -> None:
    edges = [str(row.network[0]), str(row.network[-1])]

    assert [find_internal_network(edge) is not None for edge in edges] == [True, True]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_not_internal(address: str) -> None:
    assert find_internal_network(address) is None


def test_all_ipv6_outside_global_unicast_is_internal() -> None:
    unicast = IPv6Network("2000::/3")
    first_of_each = [IPv6Address(prefix << 116) for prefix in range(2**12)]
    public = [ip for ip in first_of_each if find_internal_network(str(ip)) is None]

    assert [ip for ip in public if ip not in unicast] == []
    assert len(public) == 2**9


@pytest.mark.parametrize(
    "write",
    [
        lambda ip: f"::ffff:{ip}",
        lambda ip: str(IPv6Address((0x64FF9B << 96) | int(ip))),
        lambda ip: str(IPv6Address((0x2002 << 112) | (int(ip) << 80))),
        lambda ip: f"::{ip}",
        lambda ip: f"::ffff:{ip}%eth0",
    ],
    ids=["mapped", "nat64", "6to4", "compatible", "zone"],
)
@pytest.mark.parametrize("address", ["127.0.0.1", "168.63.129.16", "192.0.0.192", "10.0.0.1"])
def test_embedded_internal_address_is_internal(
    write: Callable[[IPv4Address], str], address: str
) -> None:
    assert find_internal_network(write(IPv4Address(address))) is not None


def test_documentation_lists_all_internal_networks() -> None:
    written = ROW.findall(DOCUMENT.read_text(encoding="utf-8"))

    assert written == [(str(row.network), row.purpose) for row in INTERNAL_NETWORKS]
