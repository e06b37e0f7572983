"""The corpus: one file for each finding and advisory, with what is sent and what must come of it.

A file holds harmless trigger shapes only. Its name is its id; `docs/security.md` names it. In
bodies and bytes, `<<text*N>>` stands for N times a text, and `<<canary>>` for the address of a
listener that nobody may call.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

FOLDER: Final = Path(__file__).parent / "corpus"
_REPEATED: Final = re.compile(r"<<(.+?)\*(\d+)>>", re.DOTALL)


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One HTTP request, and how it must be answered."""

    status: list[int]
    """Any of these. 0: no answer is looked at, because the client leaves."""
    path: str = "/v1/completions"
    method: str = ""
    """Default: POST with a body, GET without."""
    body: str | None = None
    body_hex: str = ""
    headers: dict[str, str] = {}
    keyed: bool = True
    """It has the API key."""
    times: int = 1
    """As many are sent at once."""
    leave_after_s: float | None = None
    param: str = ""
    """The field that a refusal names."""
    said: str = ""
    """What the answer says."""
    slow: bool = False
    """Left out of the short form."""

    def content(self, canary: str) -> bytes | None:
        """Return the body's bytes."""
        if self.body_hex:
            return bytes.fromhex(self.body_hex)
        return None if self.body is None else filled(self.body, canary)

    def verb(self) -> str:
        """Return the method."""
        return self.method or ("GET" if self.body is None and not self.body_hex else "POST")


class Raw(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes that are sent over a connection of their own."""

    send: str
    status: list[int]
    """Of the first answer; 0: the connection is closed without one."""
    said: str = ""


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A command line that must be refused."""

    arguments: list[str]
    said: str


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
    """Tests elsewhere that show it: `path::name`."""


def filled(text: str, canary: str = "") -> bytes:
    """Return a text of the corpus as the bytes it stands for."""
    text = text.replace("<<canary>>", canary)
    return _REPEATED.sub(lambda found: found[1] * int(found[2]), text).encode()


def load_corpus(folder: Path = FOLDER) -> dict[str, Attack]:
    """Return all files by name."""
    return {
        path.stem: msgspec.toml.decode(path.read_bytes(), type=Attack)
        for path in sorted(folder.glob("*.toml"))
    }
