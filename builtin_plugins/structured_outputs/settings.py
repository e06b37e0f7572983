"""`--structured-outputs-config`: typed, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from core.api import ConfigError, EngineConfig, did_you_mean

BACKENDS = {"guidance": "llguidance", "outlines": "outlines_core", "lm-format-enforcer": "lm_format_enforcer"}
"""vLLM's names of backends to ours."""


@dataclass(frozen=True, slots=True)
class StructuredOutputsConfig:
    """The option's values; names and defaults as in vLLM, and two bounds more."""

    backend: str = "auto"
    disable_fallback: bool = False
    """Refuse what the first backend cannot serve, rather than try the next."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    reasoning_parser: str = ""
    enable_in_reasoning: bool = False
    """Hold thoughts to the form too."""
    compile_timeout_s: float = 60.0
    """Longest time one constraint may take to compile."""
    cache_bytes: int = 512 << 20
    """Room for compiled constraints that nobody uses at the moment."""

    def __post_init__(self) -> None:
        if self.disable_any_whitespace and self.backend not in ("xgrammar", "guidance", "llguidance"):
            raise ConfigError("disable_any_whitespace is only supported for xgrammar and guidance backends.")
        if self.disable_additional_properties and self.backend not in ("guidance", "llguidance"):
            raise ConfigError("disable_additional_properties is only supported for the guidance backend.")

    @classmethod
    def of(cls, config: EngineConfig) -> StructuredOutputsConfig:
        """Return the settings of a configuration. Raises `ConfigError` naming the key."""
        given: dict[str, Any] = dict(config.options.get("structured_outputs_config") or {})
        known = {field.name: type(field.default) for field in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise ConfigError(
                    f"--structured-outputs-config has no {name!r}{did_you_mean(name, known) or '; known: '}"
                    f"{'' if did_you_mean(name, known) else ', '.join(known)}."
                )
            if known[name] is float and type(value) is int:
                value = float(value)
            if type(value) is not known[name]:
                raise ConfigError(
                    f"--structured-outputs-config.{name} must be of type {known[name].__name__}, not {value!r}."
                )
        return cls(**given)

    @property
    def wanted(self) -> str:
        """Name of the backend's entry, or "auto"."""
        return BACKENDS.get(self.backend, self.backend)
