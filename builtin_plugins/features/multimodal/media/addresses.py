"""URLs and addresses that media may be fetched from.

A URL is parsed once, strictly, and the request is made from the parsed parts: two parsers that
disagree on the host have let requests pass elsewhere (CVE-2026-24779).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final
from urllib.parse import quote

from core.api import ConfigError, InvalidRequest

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
MAX_URL_CHARS: Final = 8192
_URL: Final = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<target>[/?][^#]*)?(?:#.*)?",
    re.IGNORECASE | re.DOTALL,
)
_NAME: Final = re.compile(r"(?:[a-z0-9_][a-z0-9_-]{0,62}\.){0,20}[a-z0-9_][a-z0-9_-]{0,62}\.?")
_FORBIDDEN: Final = re.compile(r"[\x00-\x20\x7f\\]")
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*")
_EMBEDDED: Final = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that a translator maps to IPv4 (NAT64)."""
_TUNNELS: Final = tuple(map(ipaddress.ip_network, ("2002::/16", "2001::/32", "64:ff9b:1::/48")))
"""IPv6 addresses that reach IPv4 addresses of any kind through a tunnel."""
_METADATA: Final = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "169.254.169.254")))
"""Services of clouds with credentials; the first one has a public address."""
_LOCALHOST: Final = "localhost"
_LOOPBACK: Final = tuple(map(ipaddress.ip_network, ("127.0.0.0/8", "::1/128")))
_PORTS: Final = {"http": 80, "https": 443}
ACTION: Final = "Send the image as a data: URL."


@dataclass(frozen=True, slots=True)
class WebAddress:
    """A parsed http(s) URL."""

    scheme: str
    host: str
    """Lower-case name, or IP address without brackets."""
    port: int
    target: str
    """Path and query, in ASCII."""

    @property
    def is_default_port(self) -> bool:
        """Whether the port is that of the scheme."""
        return self.port == _PORTS[self.scheme]


def read_url(url: str, field: str) -> WebAddress:
    """Return a parsed http(s) URL. Raises `InvalidRequest`."""
    found = None
    if len(url) <= MAX_URL_CHARS and not _FORBIDDEN.search(url):
        found = _URL.fullmatch(url)
    host = "" if found is None else found["host"].lower().strip("[]")
    port = 0 if found is None else int(found["port"] or _PORTS[found["scheme"].lower()])
    if found is None or not (_is_address(host) or _is_name(host)) or not 0 < port < 2**16:
        raise InvalidRequest(
            field,
            f"got {url[:100]!r}; expected an http(s) URL with a plain host and without a user, "
            f"spaces or backslashes. {ACTION}",
        )
    target = quote(found["target"] or "/", safe="/?:@!$&'()*+,;=~-._[]%")
    target = target if target.startswith("/") else f"/{target}"
    return WebAddress(found["scheme"].lower(), host.rstrip("."), port, target)


def _is_address(host: str) -> bool:
    """Return whether a host is an IP address in its canonical form."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _is_name(host: str) -> bool:
    """Return whether a host is a name: no IPv4 address in another spelling, such as 0x7f.1."""
    last = host.rstrip(".").rpartition(".")[2]
    return _NAME.fullmatch(host) is not None and _NUMBER.fullmatch(last) is None


def is_public(address: Address) -> bool:
    """Return whether an address is one of the public internet."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped)
        if address in _EMBEDDED:
            return is_public(IPv4Address(int(address) & 2**32 - 1))
        if address.is_site_local or any(address in network for network in _TUNNELS):
            return False
    return (
        address.is_global
        and not (address.is_multicast or address.is_reserved or address.is_loopback)
        and not (address.is_link_local or address.is_unspecified or address in _METADATA)
    )


class AllowedSources:
    """`--allowed-media-domains`: names of hosts, and networks that are not public."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        """Read the entries. Raises `ConfigError`."""
        self._names: set[str] = set()
        self._parents: list[str] = []
        """Ends of names, each with a dot; an empty one allows all names."""
        self._networks: list[Network] = []
        for entry in entries:
            self._add(entry.strip().lower())

    def __bool__(self) -> bool:
        return bool(self._names or self._parents or self._networks)

    def _add(self, entry: str) -> None:
        try:
            self._networks.append(ipaddress.ip_network(entry))
        except ValueError:
            name = entry.removeprefix("*").removeprefix(".") if entry != "*" else ""
            if entry != "*" and not (_NAME.fullmatch(name) and _is_name(name)):
                raise ConfigError(
                    f"--allowed-media-domains: got {entry!r:.100}; expected names such as "
                    "example.com or *.example.com, * for all public hosts, or networks such as "
                    "10.0.0.0/8. Correct it."
                ) from None
            if entry.startswith("*"):
                self._parents.append(f".{name}" if name else "")
            else:
                self._names.add(name)

    def check_host(self, host: str, field: str) -> None:
        """Raise `InvalidRequest` unless the list has the host, or a network with it."""
        if _is_address(host):
            allowed = "" in self._parents or self._has(ipaddress.ip_address(host), host)
        else:
            allowed = host in self._names or any(host.endswith(end) for end in self._parents)
        if allowed:
            return
        reason = "is not one of them" if self else "it is empty"
        raise InvalidRequest(
            field,
            f"got a URL of {host[:100]!r}; expected a host of --allowed-media-domains, and "
            f"{reason}. {ACTION}",
        )

    def check_address(self, text: str, host: str, field: str) -> None:
        """Raise `InvalidRequest` for a host's address that is not public nor of a listed network.

        The message names no address: clients need not learn of inner networks.
        """
        address = ipaddress.ip_address(text.partition("%")[0])
        if not (is_public(address) or self._has(address, host)):
            raise InvalidRequest(
                field,
                f"got a host with an address that is not public; expected a public one. {ACTION}",
            )

    def _has(self, address: Address, host: str) -> bool:
        """Return whether an address is of a listed network, or that of a listed localhost.

        Any other name may have the address of this machine, too, by its owner's will.
        """
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        networks = self._networks
        if _LOCALHOST in self._names and (host == _LOCALHOST or _is_address(host)):
            networks = [*networks, *_LOOPBACK]
        return any(address in network for network in networks) or (
            mapped is not None and self._has(mapped, host)
        )
