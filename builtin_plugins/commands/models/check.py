"""`engine models --check`: every model type of the installed transformers, by how it is served.

A type that was not tried is a failure: a new release of transformers shows its new types here.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from builtin_plugins.commands.models.row import Row

UNTRIED: Final = "untried"


@dataclass(frozen=True, slots=True)
class TypeState:
    """How one model type is served."""

    model_type: str
    architecture: str
    """Class of transformers that writes text for it."""
    state: str
    """native, generic, no, or untried."""
    reason: str = ""


def installed_types() -> dict[str, str]:
    """Return the types of the installed transformers that write text, with their classes."""
    from transformers.models.auto import modeling_auto  # lazy: slow to import

    found: dict[str, str] = {}
    for mapping in (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    ):
        for model_type, names in mapping.items():
            found[model_type] = names if isinstance(names, str) else names[0]
    return found


def type_states(rows: Iterable[Row], types: Mapping[str, str]) -> list[TypeState]:
    """Return the state of each type, by the rows of `engine models`.

    A type that shares its class with others has the state of the class.
    """
    by_type: dict[str, Row] = {}
    by_class: dict[str, Row] = {}
    for row in rows:
        by_type |= dict.fromkeys(row.model_types, row)
        by_class[row.architecture] = row
    states = []
    for kind, name in sorted(types.items()):
        found = by_type.get(kind) or by_class.get(name)
        states.append(
            TypeState(kind, name, UNTRIED)
            if found is None
            else TypeState(kind, found.architecture, found.how, found.reason)
        )
    return states


def print_check(states: Sequence[TypeState], version: str, *, as_json: bool) -> int:
    """Print the states; return 1 if a type was not tried, else 0."""
    untried = [each for each in states if each.state == UNTRIED]
    if as_json:
        json.dump([asdict(each) for each in states], sys.stdout, indent=2)
        print()
        return int(bool(untried))
    for each in states:
        print(f"{each.model_type:<32} {each.state:<8} {each.reason or each.architecture}")
    count = Counter(each.state for each in states)
    print(
        f"transformers {version}: {len(states)} types, {count['native']} native, "
        f"{count['generic']} by transformers' modules, {count['no']} not served, "
        f"{len(untried)} untried"
    )
    if untried:
        names = ", ".join(each.model_type for each in untried)
        print(
            f"untried: {names}. Run `python scripts/survey_models.py` with this transformers.",
            file=sys.stderr,
        )
    return int(bool(untried))
