"""Internal networks that the studio never connects to on behalf of a user (SSRF).

The studio has its own list because `ipaddress.is_global` depends on the Python version (3.11.7
treats 192.0.0.0/24, 3fff::/20 and fec0::/10 as public), and no registry lists the public address at
which Azure serves its virtual machines. Sources: IANA's special-purpose address registries for IPv4
(RFC 6890, as of 2025-10) and IPv6, its IPv6 address space registry, and the cloud providers'
documentation. `docs/security.md` shows the same table; a contract test compares them.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

NAT64 = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class InternalNetwork:
    network: IPv4Network | IPv6Network
    purpose: str


_PURPOSES = {
    "0.0.0.0/8": "this host and network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by carriers; Alibaba Cloud's metadata (100.100.100.200)",
    "127.0.0.0/8": "this host",
    "168.63.129.16/32": "Azure's platform services",
    "169.254.0.0/16": "link-local; metadata of AWS, Azure, Google Cloud, Oracle and others",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments; Oracle Cloud Classic's metadata (192.0.0.192)",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "6to4 relays, deprecated",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarks of networks",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, and broadcast",
    "::/8": "this host, IPv4 in IPv6, translation (64:ff9b:1::/48)",
    "100::/8": "discard-only, and reserved",
    "200::/7": "reserved",
    "400::/6": "reserved",
    "800::/5": "reserved",
    "1000::/4": "reserved",
    "2001::/23": "protocol assignments: Teredo, benchmarks, ORCHID",
    "2001:db8::/32": "documentation",
    "3fff::/20": "documentation",
    "4000::/2": "reserved; segment routing (5f00::/16)",
    "8000::/2": "reserved",
    "c000::/3": "reserved",
    "e000::/4": "reserved",
    "f000::/5": "reserved",
    "f800::/6": "reserved",
    "fc00::/7": "unique local; metadata of AWS (fd00:ec2::254) and Google Cloud (fd20:ce::254)",
    "fe00::/9": "reserved",
    "fe80::/10": "link-local",
    "fec0::/10": "site-local, deprecated",
    "ff00::/8": "multicast",
}

INTERNAL_NETWORKS = tuple(
    InternalNetwork(ip_network(network), purpose) for network, purpose in _PURPOSES.items()
)


def find_internal_network(address: str) -> InternalNetwork | None:
    """Return the internal network of an address, after address translation, or None.

    Raises:
        ValueError: the text is not an IP address.

    """
    ip = _destination(ip_address(address.partition("%")[0]))
    return next((row for row in INTERNAL_NETWORKS if ip in row.network), None)


def _destination(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address behind a translated or tunnelled IPv6 address, or the address."""
    if isinstance(ip, IPv4Address):
        return ip
    if ip.ipv4_mapped or ip.sixtofour:
        return ip.ipv4_mapped or ip.sixtofour or ip
    if ip in NAT64:
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip
