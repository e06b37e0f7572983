"""Page of known attacks: what they are, and the files of the corpus that try them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from tests.system.attacks.known_attacks import KnownAttack, KnownAttacks
from tests.system.hostile_files.hostile_file import HostileFile

INTRO = """\
# Known attacks

`tests/system/attacks/corpus/` holds one file per attack: a harmless trigger and the required
answer ([how they run](../guides/limits.md#attack-corpus)). An empty file column means that the
attack does not apply here.

## Found here

| attack | corpus file |
| --- | --- |
"""
HOSTILE = """
## Hostile files

Files of `tests/system/hostile_files/` by kind ([limits](../guides/limits.md#hostile-files)).

| kind | files | refused by name | served |
| --- | --- | --- | --- |
"""
COLUMNS = "| {} | what it was | corpus file | here |\n| --- | --- | --- | --- |\n"


def attacks_page(known: KnownAttacks, hostile: Sequence[HostileFile]) -> str:
    """Return the page as markdown."""
    parts = [INTRO]
    parts += [f"| {attack.was} | {_names(attack)} |\n" for attack in known.found_here]
    parts.append("\n## Advisories of vLLM\n\nAll that were published until July 2026.\n")
    for subject, attacks in known.advisories.items():
        parts.append(f"\n### {subject}\n\n{COLUMNS.format('advisory')}")
        parts += map(_row, attacks)
    parts.append(f"\n## Other engines\n\n{COLUMNS.format('case')}")
    parts += map(_row, known.other_engines)
    return "".join([*parts, HOSTILE, *_counts(hostile)])


def _row(attack: KnownAttack) -> str:
    return f"| {attack.id} | {attack.was} | {_names(attack)} | {attack.here} |\n"


def _names(attack: KnownAttack) -> str:
    return ", ".join(f"`{name}`" for name in attack.files)


def _counts(hostile: Sequence[HostileFile]) -> Iterator[str]:
    kinds = Counter(each.kind for each in hostile)
    refused = Counter(each.kind for each in hostile if each.refusal is not None)
    for kind, count in kinds.items():
        yield f"| {kind} | {count} | {refused[kind]} | {count - refused[kind]} |\n"
