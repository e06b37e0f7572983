"""The `format`s of JSON Schema as regexes of whole texts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_D: Final = "[0-9]"
_LEAP: Final = f"(?:{_D}{_D}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
_DATE: Final = (
    f"(?:{_D}{{4}}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]{_D}|3[01])"
    f"|(?:0[469]|11)-(?:0[1-9]|[12]{_D}|30)|02-(?:0[1-9]|1{_D}|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR: Final = f"(?:[01]{_D}|2[0-3])"
_OFFSET: Final = f"(?:[Zz]|[+-]{_HOUR}:[0-5]{_D})"
_FRACTION: Final = rf"(?:\.{_D}+)?"


def _leap_seconds() -> Iterator[str]:
    """Yield the times of leap seconds, which are 23:59:60 in UTC, by offset."""
    yield f"23:59:60{_FRACTION}[Zz]"
    for halves in range(-47, 48):
        local = (23 * 60 + 59 + halves * 30) % 1440
        offset = f"{abs(halves) // 2:02}:{abs(halves) % 2 * 30:02}"
        signs = "[+]" if halves > 0 else "[-]" if halves < 0 else "[+-]"
        yield f"{local // 60:02}:{local % 60:02}:60{_FRACTION}{signs}{offset}"


_TIME: Final = f"(?:{_HOUR}:[0-5]{_D}:[0-5]{_D}{_FRACTION}{_OFFSET}|{'|'.join(_leap_seconds())})"
_BYTE: Final = f"(?:25[0-5]|2[0-4]{_D}|1{_D}{_D}|[1-9]?{_D})"
_IPV4: Final = rf"{_BYTE}(?:\.{_BYTE}){{3}}"


def _ipv6() -> str:
    group = "[0-9A-Fa-f]{1,4}"
    last = f"(?:{group}:{group}|{_IPV4})"
    ways = [f"(?:{group}:){{6}}{last}"]
    for after in range(5, -1, -1):
        before = "" if after == 5 else f"(?:(?:{group}:){{0,{4 - after}}}{group})?"
        ways.append(f"{before}::(?:{group}:){{{after}}}{last}")
    ways.append(f"(?:(?:{group}:){{0,5}}{group})?::{group}")
    ways.append(f"(?:(?:{group}:){{0,6}}{group})?::")
    return f"(?:{'|'.join(ways)})"


_IPV6: Final = _ipv6()
_LABEL: Final = "(?!..--)[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_HOSTNAME: Final = rf"{_LABEL}(?:\.{_LABEL})*"
_PLAIN_LABEL: Final = "[0-9A-Za-z](?:[0-9A-Za-z-]{0,61}[0-9A-Za-z])?"
_ATOM: Final = "[0-9A-Za-z!#$%&'*+/=?^_`{|}~-]+"
_QUOTED: Final = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_EMAIL: Final = (
    rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})"
    rf"@(?:{_PLAIN_LABEL}(?:\.{_PLAIN_LABEL})*|\[(?:{_IPV4}|IPv6:{_IPV6})\])"
)


def _uri(*, is_reference: bool, extra: str = "", private: str = "") -> str:
    """Return RFC 3986's grammar, or RFC 3987's with its extra characters."""
    hex_ = "%[0-9A-Fa-f]{2}"
    plain = rf"[0-9A-Za-z\-._~!$&'()*+,;={extra}]"
    name = f"(?:{plain}|{hex_})*"
    char = f"(?:{plain}|[:@]|{hex_})"
    user = f"(?:(?:{plain}|:|{hex_})*@)?"
    future = r"[vV][0-9A-Fa-f]+\.[0-9A-Za-z\-._~!$&'()*+,;=:]+"
    authority = rf"{user}(?:\[(?:{_IPV6}|{future})\]|{name})(?::{_D}*)?"
    absolute = f"/(?:{char}+(?:/{char}*)*)?"
    rest = rf"(?:\?(?:{char}|[/?{private}])*)?(?:#(?:{char}|[/?])*)?"
    hierarchy = f"(?://{authority}(?:/{char}*)*|{absolute}|{char}+(?:/{char}*)*|)"
    whole = rf"[A-Za-z][0-9A-Za-z+.\-]*:{hierarchy}{rest}"
    if not is_reference:
        return whole
    no_colon = f"(?:{plain}|@|{hex_})"
    relative = f"(?://{authority}(?:/{char}*)*|{absolute}|{no_colon}+(?:/{char}*)*|)"
    return f"(?:{whole}|{relative}{rest})"


_UCS: Final = (
    r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
_PRIVATE: Final = r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"
_NAME: Final = "(?:[0-9A-Za-z_]|%[0-9A-Fa-f]{2})"
_VARIABLE: Final = rf"{_NAME}(?:\.?{_NAME})*(?::[1-9]{_D}{{0,3}}|\*)?"
_TEMPLATE: Final = (
    r"""(?:[^\u{0}-\u{20}"%<>\\^`{|}\u{7F}]|%[0-9A-Fa-f]{2}"""
    rf"|\{{[+#./;?&=,!@|]?{_VARIABLE}(?:,{_VARIABLE})*\}})*"
)
_POINTER: Final = "(?:/(?:[^~/]|~[01])*)*"
_HEX4: Final = "[0-9A-Fa-f]{4}"
_DURATION_TIME: Final = f"T(?:{_D}+H(?:{_D}+M(?:{_D}+S)?)?|{_D}+M(?:{_D}+S)?|{_D}+S)"
_DURATION: Final = (
    f"P(?:(?:{_D}+Y(?:{_D}+M(?:{_D}+D)?)?|{_D}+M(?:{_D}+D)?|{_D}+D)(?:{_DURATION_TIME})?"
    f"|{_DURATION_TIME}|{_D}+W)"
)

MAX_LENGTHS: Final = {"hostname": 253}
"""Maximum length of a format's texts."""
UNSERVED_FORMATS: Final = frozenset(["idn-email", "idn-hostname", "regex"])
"""Formats that are no regular language, or one of impractical size."""


@lru_cache(maxsize=1)
def format_patterns() -> dict[str, str]:
    """Return the regex of each format; formats without one are annotations."""
    return {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}[Tt]{_TIME}",
        "duration": _DURATION,
        "email": _EMAIL,
        "hostname": _HOSTNAME,
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "uri": _uri(is_reference=False),
        "uri-reference": _uri(is_reference=True),
        "iri": _uri(is_reference=False, extra=_UCS, private=_PRIVATE),
        "iri-reference": _uri(is_reference=True, extra=_UCS, private=_PRIVATE),
        "uri-template": _TEMPLATE,
        "json-pointer": _POINTER,
        "relative-json-pointer": f"(?:0|[1-9]{_D}*)(?:#|{_POINTER})",
        "uuid": f"{_HEX4}{_HEX4}-{_HEX4}-{_HEX4}-{_HEX4}-{_HEX4}{_HEX4}{_HEX4}",
    }
