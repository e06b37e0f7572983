"""What the config.json of a folder says of how it guesses: checkpoints of heads, and those in the
format of `speculators`.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

HEADS: Final = ("suffix", "eagle3", "eagle", "medusa", "mlp_speculator")
"""Methods that a checkpoint may be made for; the first whose name is found counts."""


def read_stated(folder: str) -> Mapping[str, Any]:
    """Return what a folder's config.json holds; nothing where there is none, or none that can be
    read.
    """
    path = Path(folder).expanduser() / "config.json"
    if not folder or not os.path.isfile(path):  # Path's own raises for a name that is too long
        return {}
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return {}  # whoever reads the model says what is wrong
    return stated if isinstance(stated, dict) else {}


def method_of(stated: Mapping[str, Any]) -> str:
    """Return the method that a checkpoint is made for; `draft_model` where it is a model like any
    other.
    """
    own = stated.get("speculators_config")
    names = [
        stated.get("speculators_model_type"),
        stated.get("model_type"),
        *(stated.get("architectures") or ()),
    ]
    if isinstance(own, Mapping):
        names.insert(0, own.get("algorithm"))
    said = [str(name).lower().replace("-", "") for name in names if name]
    found = next(
        (
            method
            for name in said
            for method in HEADS
            if method in name.replace("mlpspeculator", HEADS[-1])
        ),
        "",
    )
    return found or ("medusa" if "medusa_num_heads" in stated else "draft_model")


def tokens_of(stated: Mapping[str, Any]) -> int:
    """Return how many tokens a checkpoint is meant to guess; 0: it does not say."""
    own = stated.get("speculators_config")
    proposals = own.get("proposal_methods") if isinstance(own, Mapping) else None
    first = proposals[0] if isinstance(proposals, list) and proposals else {}
    count = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    return count if type(count) is int and count > 0 else 0


def verifier_of(stated: Mapping[str, Any]) -> str:
    """Return the model that a checkpoint in the format of `speculators` guesses for; empty: it is
    none.
    """
    own = stated.get("speculators_config")
    verifier = own.get("verifier") if isinstance(own, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return name if isinstance(name, str) else ""
