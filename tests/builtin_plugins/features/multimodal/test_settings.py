"""Each option of images changes the setting that the parts of the feature read."""

from __future__ import annotations

from typing import Any

import pytest

from builtin_plugins.features.multimodal.settings import Settings
from core.config import EngineConfig


@pytest.mark.parametrize(
    ("option", "value", "setting", "expected"),
    [
        ("mm_processor_cache_gb", 0.5, "store_bytes", 1 << 29),
        ("disable_chunked_mm_input", True, "whole_items", True),
        ("trust_request_mm_kwargs", True, "trust_request_kwargs", True),
        ("enable_mm_embeds", True, "enable_embeddings", True),
        ("mm_encoder_cache_tokens", 7, "cache_tokens", 7),
        ("mm_encoder_step_tokens", 9, "step_tokens", 9),
    ],
)
def test_each_option_changes_its_setting(
    option: str, value: Any, setting: str, expected: Any
) -> None:
    assert getattr(Settings.from_config(EngineConfig()), setting) != expected
    changed = Settings.from_config(EngineConfig(options={option: value}))
    assert getattr(changed, setting) == expected
