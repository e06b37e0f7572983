"""`known_attacks.toml` and the corpus agree."""

from __future__ import annotations

import re
from itertools import chain

from tests.system.attacks.corpus_files import load_corpus
from tests.system.attacks.known_attacks import FILE, load_known_attacks

CORPUS = load_corpus()
KNOWN = load_known_attacks()
NUM_ADVISORIES = 59
ID = re.compile(r"(?:CVE-\d{4}-\d+|GHSA(?:-[a-z0-9]{4}){3})")


def test_every_advisory_has_file_or_reason() -> None:
    advisories = [attack for subject in KNOWN.advisories.values() for attack in subject]
    assert len(advisories) == len({attack.id for attack in advisories}) == NUM_ADVISORIES
    for attack in advisories:
        assert ID.fullmatch(attack.id)
        assert attack.files or attack.here, attack.id
        assert all(attack.id in CORPUS[name].source for name in attack.files), attack.id


def test_every_case_of_other_engines_has_file() -> None:
    for attack in KNOWN.other_engines:
        (name,) = attack.files
        years = re.findall(r"(?:CVE-(\d{4}))?-(\d{4,})\b", attack.id.replace("CVE-", " CVE-"))
        numbers = {number for _, number in years}
        assert numbers <= {source.rpartition("-")[2] for source in CORPUS[name].source}, attack.id


def test_every_file_is_named() -> None:
    advisories = chain.from_iterable(KNOWN.advisories.values())
    listed = [*KNOWN.found_here, *KNOWN.other_engines, *advisories]
    assert {name for attack in listed for name in attack.files} == CORPUS.keys()


def test_every_advisory_in_corpus_is_listed() -> None:
    text = FILE.read_text(encoding="utf-8")
    listed = set(ID.findall(text))
    shortened = {f"CVE-2026-{number}" for number in re.findall(r"(?<=, )-(\d{4,})", text)}
    sources = {
        source for attack in CORPUS.values() for source in attack.source if ID.fullmatch(source)
    }
    assert sources - listed - shortened == {"CVE-2025-3162", "CVE-2025-32381"}, (
        "other ids of cases that are listed"
    )
