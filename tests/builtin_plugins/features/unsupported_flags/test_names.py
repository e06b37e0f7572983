"""Names of vLLM's backends and formats: the error says what each needs."""

from __future__ import annotations

import pytest

from builtin_plugins.features.unsupported_flags.names import MISSING_NAMES
from core.errors import ConfigError
from core.plugin import Registry, load_plan, make_plan
from core.plugin.discovery import discover


@pytest.fixture(scope="module")
def registry() -> Registry:
    return load_plan(make_plan([f"no:{ref.name}" for ref in discover() if not ref.builtin]))


@pytest.mark.parametrize("label", MISSING_NAMES)
def test_missing_name_is_refused_with_what_it_needs(label: str, registry: Registry) -> None:
    kind, _, name = label.partition(":")
    with pytest.raises(ConfigError) as caught:
        registry.choose(kind, name)
    assert f"{name!r} is {MISSING_NAMES[label]}; available: " in str(caught.value)


def test_names_that_no_plugin_knows_are_unknown(registry: Registry) -> None:
    with pytest.raises(ConfigError, match=r"^unknown attention backend 'FLASH_ATN'"):
        registry.choose("attention_backends", "FLASH_ATN")
