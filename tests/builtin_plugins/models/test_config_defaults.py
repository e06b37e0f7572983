"""Absent config.json fields have transformers' defaults."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from huggingface_hub.errors import StrictDataclassError

from core.errors import ModelError
from core.testing.checkpoints import ARCHITECTURES

ALWAYS_GIVEN = {
    "max_position_embeddings",
    "original_max_position_embeddings",
    "max_seq_len",
    "n_positions",
    "seq_length",
    "num_key_value_heads",
}
"""Their defaults are the sizes of one release of a model; every published file has them."""
OTHERWISE = {
    (
        "DbrxForCausalLM",
        "ffn_config",
    ): "transformers reads no rope_theta from attn_config, where DBRX's file has it",
    ("Olmo3ForCausalLM", "old rope_theta"): "transformers keeps it for the full layers only",
    ("Gemma4ForCausalLM", "old rope_theta"): "Gemma 4 never had the old format",
    ("Gemma4UnifiedForCausalLM", "old rope_theta"): "Gemma 4 never had the old format",
}


def shortened(facts: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the config without each of its fields, and with the old spelling of the rotary
    base.
    """
    without = {
        key: {k: v for k, v in facts.items() if k != key}
        for key in facts
        if key not in ALWAYS_GIVEN
    }
    plain = {key: value for key, value in facts.items() if key != "rope_parameters"}
    return {**without, "old rope_theta": {**plain, "rope_theta": 54321.0}}


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES))
def test_absent_config_fields_have_transformers_defaults(
    architecture: str, spec_of: Callable[[str, Any], Any]
) -> None:
    config_class, facts = ARCHITECTURES[architecture]
    for what, given in shortened(deepcopy(dict(facts))).items():
        if (architecture, what) in OTHERWISE:
            continue
        try:
            found = spec_of(architecture, SimpleNamespace(**given))
            config = getattr(transformers, config_class)(**deepcopy(given))
        except (ModelError, StrictDataclassError):
            continue  # a field that must be there
        filled = json.loads(config.to_json_string(use_diff=False))
        if (
            "num_nextn_predict_layers" not in given
        ):  # a file that states none has no such layer, whatever the class fills in
            filled.pop("num_nextn_predict_layers", None)
        complete = SimpleNamespace(**filled)
        assert found == spec_of(architecture, complete), f"without {what}"
