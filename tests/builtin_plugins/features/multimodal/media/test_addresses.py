"""URLs and addresses of media: no spelling of an inner address passes."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builtin_plugins.features.multimodal.media.addresses import (
    AllowedSources,
    is_public,
    read_url,
)
from core.api import ConfigError, InvalidRequest

FIELD = "messages[0].content[0].image_url"
ALL = AllowedSources(["*"])

UNREADABLE = [
    "http://user@example.com/a.png",
    "http://user:secret@example.com/a.png",
    "http://example.com\\@127.0.0.1/a.png",
    "http://127.0.0.1\\@example.com/a.png",
    "http://example.com%2f@127.0.0.1/",
    "http://example.com%00.evil.test/",
    "http://exa mple.com/",
    "http://example.com\t/",
    "http://example.com/\r\nHost: 127.0.0.1",
    "http://example.com/a\nb",
    " http://example.com/",
    "http:///a.png",
    "http:example.com",
    "http://:80/",
    "http://example.com:0/",
    "http://example.com:65536/",
    "http://example.com:99999999/",
    "http://example.com:80a/",
    "http://2130706433/",
    "http://017700000001/",
    "http://0x7f000001/",
    "http://0177.0.0.1/",
    "http://127.0.0.0x1/",
    "http://127.1/",
    "http://127.0.1/",
    "http://0/",
    "http://127.0.0.1.5/",
    "http://a.123/",
    "http://[::1/",
    "http://::1/",
    "http://[::1%25lo]/",
    "http://[fe80::1%eth0]/",
    "http://[127.0.0.1]x/",
    "http://①②⑦.⓪.⓪.①/",
    "http://ⓔxample.com/",
    "http://exämple.com/",
    "http://-example.com:/",
    "http://example..com/",
    "http://" + "a." * 40 + "com/",
    "http://example.com/" + "a" * 9000,
    "gopher://example.com/",
    "",
]


@pytest.mark.parametrize("url", UNREADABLE)
def test_url_that_parsers_read_differently_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_url(url, FIELD)
    assert refused.value.field == FIELD


def test_url_is_read_into_its_parts() -> None:
    address = read_url("HTTPS://Example.COM./a b/ü?q=1#part".replace(" ", "%20"), FIELD)
    assert (address.scheme, address.host, address.port) == ("https", "example.com", 443)
    assert address.target == "/a%20b/%C3%BC?q=1"
    assert read_url("http://a.test?x", FIELD).target == "/?x"
    assert read_url("http://[2001:DB8::1]:81/", FIELD).host == "2001:db8::1"
    assert read_url("http://my_bucket.s3.test:81", FIELD).port == 81


INNER = [
    *("127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255"),
    *("192.168.1.1", "169.254.169.254", "169.254.0.1", "100.64.0.1", "100.100.100.200"),
    *("168.63.129.16", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1", "203.0.113.1"),
    *("224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::7f00:1"),
    *("64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2001:0:1::1", "64:ff9b:1::7f00:1"),
    *("::127.0.0.1", "fec0::1", "100::1"),
]


@pytest.mark.parametrize("address", INNER)
def test_inner_address_is_refused_in_every_spelling(address: str) -> None:
    assert not is_public(ipaddress.ip_address(address))
    for sources in (ALL, AllowedSources(["example.com"])):
        with pytest.raises(InvalidRequest, match="not public") as refused:
            sources.check_address(address, "a.test", FIELD)
        assert address not in str(refused.value)


@pytest.mark.parametrize("address", ["1.1.1.1", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"])
def test_public_address_is_accepted(address: str) -> None:
    ALL.check_address(address, "a.test", FIELD)


def test_hosts_are_those_of_the_list() -> None:
    sources = AllowedSources(["Example.com", "*.cdn.test", "10.1.0.0/16", "::1"])
    for host in ("example.com", "a.cdn.test", "a.b.cdn.test", "10.1.2.3", "::1"):
        sources.check_host(host, FIELD)
    for host in ("www.example.com", "cdn.test", "evilcdn.test", "10.2.0.1", "8.8.8.8", "::2"):
        with pytest.raises(InvalidRequest, match="--allowed-media-domains"):
            sources.check_host(host, FIELD)
    sources.check_address("10.1.255.1", "a.test", FIELD)
    sources.check_address("::ffff:10.1.255.1", "a.test", FIELD)
    with pytest.raises(InvalidRequest, match="not public"):
        sources.check_address("10.2.0.1", "a.test", FIELD)


def test_empty_list_allows_no_host_and_star_every_public_one() -> None:
    with pytest.raises(InvalidRequest, match="it is empty"):
        AllowedSources().check_host("example.com", FIELD)
    ALL.check_host("any.example.com", FIELD)
    ALL.check_host("8.8.8.8", FIELD)


@pytest.mark.parametrize("entry", ["", "http://a.test", "a.test/x", "a b", "*.*.test", "a.test:80"])
def test_invalid_entry_stops_the_start(entry: str) -> None:
    with pytest.raises(ConfigError, match="--allowed-media-domains"):
        AllowedSources([entry])


@given(st.ip_addresses())
def test_any_address_is_public_or_not_in_all_its_forms(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    public = is_public(address)
    if isinstance(address, ipaddress.IPv4Address):
        assert is_public(ipaddress.IPv6Address(f"::ffff:{address}")) == public
        embedded = ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) + int(address))
        assert is_public(embedded) == public
    assert not (public and (address.is_private or address.is_loopback or address.is_multicast))


def test_localhost_on_the_list_is_this_machine_and_no_other() -> None:
    sources = AllowedSources(["localhost", "*.test"])
    for host in ("localhost", "127.0.0.1", "::1"):
        sources.check_host(host, FIELD)
        for address in ("127.0.0.1", "::1"):
            sources.check_address(address, host, FIELD)
    for address in ("10.0.0.1", "169.254.169.254", "fe80::1"):
        with pytest.raises(InvalidRequest, match="not public"):
            sources.check_address(address, "localhost", FIELD)
    for host, listed in (("a.test", sources), ("localhost", ALL)):
        with pytest.raises(InvalidRequest, match="not public"):
            listed.check_address("127.0.0.1", host, FIELD)
