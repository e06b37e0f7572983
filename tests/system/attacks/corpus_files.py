"""The corpus: one file for each finding and advisory, with requests and their expected answers.

A file holds harmless triggers only. Its name is its id; `known_attacks.toml` names it. In
bodies and bytes, `<<text*N>>` is N copies of a text, and `<<canary>>` is the address of a listener
that nothing may connect to.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(__file__).parent / "corpus"
_REPEATED: Final = re.compile(r"<<(.+?)\*(\d+)>>", re.DOTALL)


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One HTTP request and its expected answer."""

    status: list[int]
    """Accepted status codes. 0: no answer, because the client leaves."""
    path: str = "/v1/completions"
    method: str = ""
    """Default: POST with a body, GET without."""
    body: str | None = None
    body_hex: str = ""
    headers: dict[str, str] = {}
    authenticated: bool = True
    """It has the API key."""
    times: int = 1
    """Number of concurrent copies."""
    disconnect_after_s: float | None = None
    param: str = ""
    """Field that the error names."""
    contains: str = ""
    """Text in the response body."""
    slow: bool = False
    """Only for the slow tests."""

    def content(self, canary: str) -> bytes | None:
        """Return the body."""
        if self.body_hex:
            return bytes.fromhex(self.body_hex)
        return None if self.body is None else expand(self.body, canary)

    def http_method(self) -> str:
        """Return the method, or its default."""
        return self.method or ("GET" if self.body is None and not self.body_hex else "POST")


class Raw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes for a new connection, and the expected answer."""

    send: str
    status: list[int]
    """Of the first answer; 0: the connection is closed without one."""
    contains: str = ""


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command line that must be rejected."""

    arguments: list[str]
    contains: str


class Attack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file."""

    title: str
    source: list[str]
    """Findings and advisories."""
    request: list[Request] = []
    raw: list[Raw] = []
    command: list[Command] = []
    check: list[str] = []
    """Functions in `checks.py`; they run under `python -O` as well."""
    test: list[str] = []
    """Tests in other folders that show it: `path::name`."""


def expand(text: str, canary: str = "") -> bytes:
    """Return the bytes of a corpus text, with its placeholders replaced."""
    text = text.replace("<<canary>>", canary)
    return _REPEATED.sub(lambda match: match[1] * int(match[2]), text).encode()


def load_corpus(folder: Path = FOLDER) -> dict[str, Attack]:
    """Return all files by name."""
    return {
        path.stem: msgspec.toml.decode(path.read_bytes(), type=Attack)
        for path in sorted(folder.glob("*.toml"))
    }
