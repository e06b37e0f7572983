"""The config.json of heads and of `speculators` checkpoints: method, draft length and verifier."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.api import ModelError

OPTION: Final = "speculative_config"
HEAD_METHODS: Final = ("suffix", "eagle3", "eagle", "medusa", "mlp_speculator")
"""Methods with checkpoints. The first that a name contains counts."""


def read_head_config(folder: str) -> Mapping[str, Any]:
    """Return a folder's config.json; empty if it is missing or unreadable."""
    # Lazy: every start imports this module.
    from builtin_plugins.model_sources.api import read_settings_object

    path = Path(folder).expanduser() / "config.json"
    if not folder or not os.path.isfile(path):  # `Path.is_file` raises for too long names
        return {}
    try:
        return read_settings_object(path)
    except ModelError:
        return {}  # the model loader reports the error


def method_of(config: Mapping[str, Any]) -> str:
    """Return the method of a checkpoint; `draft_model` for an ordinary model."""
    speculators = config.get("speculators_config")
    names = [
        config.get("speculators_model_type"),
        config.get("model_type"),
        *(config.get("architectures") or ()),
    ]
    if isinstance(speculators, Mapping):
        names.insert(0, speculators.get("algorithm"))
    for name in names:
        if not name:
            continue
        plain = str(name).lower().replace("-", "").replace("mlpspeculator", HEAD_METHODS[-1])
        for method in HEAD_METHODS:
            if method in plain:
                return method
    return "medusa" if "medusa_num_heads" in config else "draft_model"


def tokens_of(config: Mapping[str, Any]) -> int:
    """Return a checkpoint's recommended number of draft tokens; 0: none."""
    speculators = config.get("speculators_config")
    proposals = speculators.get("proposal_methods") if isinstance(speculators, Mapping) else None
    first = proposals[0] if isinstance(proposals, list) and proposals else {}
    count = first.get("speculative_tokens") if isinstance(first, Mapping) else None
    return count if type(count) is int and count > 0 else 0


def verifier_of(config: Mapping[str, Any]) -> str:
    """Return the target model of a `speculators` checkpoint; empty: it is no such checkpoint."""
    speculators = config.get("speculators_config")
    verifier = speculators.get("verifier") if isinstance(speculators, Mapping) else None
    name = verifier.get("name_or_path") if isinstance(verifier, Mapping) else None
    return name if isinstance(name, str) else ""
