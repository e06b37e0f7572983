"""All environment variables the engine reads. Nothing else in it looks at the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

CONFIG_FILE: Final = "ENGINE_CONFIG"
"""Configuration file, where no --config is given."""

FIELDS: Final[Mapping[str, str]] = {
    "ENGINE_PLUGINS": "plugins",
    "ENGINE_LOG_LEVEL": "log_level",
    "ENGINE_API_KEY": "api_key",  # a key given as a flag could be read in the process list
}
"""Variable to the field it sets; one whose field no loaded plugin has is passed over."""


def read_environment() -> dict[str, str]:
    """Return the engine's variables that are set and not empty."""
    return {name: os.environ[name] for name in (CONFIG_FILE, *FIELDS) if os.environ.get(name)}
