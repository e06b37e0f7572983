"""Known attacks on this engine and on others, and the files of the corpus that try them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

FILE: Final = Path(__file__).parent / "known_attacks.toml"


class KnownAttack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attack."""

    was: str
    """What it does where it works."""
    files: list[str]
    """Names of corpus files; none if it does not apply here."""
    id: str = ""
    """The advisory, or engine and case."""
    here: str = ""
    """What is different here."""


class KnownAttacks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of them."""

    found_here: list[KnownAttack]
    advisories: dict[str, list[KnownAttack]]
    """Advisories of vLLM by subject."""
    other_engines: list[KnownAttack]


def load_known_attacks() -> KnownAttacks:
    """Read the file."""
    return msgspec.toml.decode(FILE.read_bytes(), type=KnownAttacks)
