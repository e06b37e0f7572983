"""`--structured-outputs-config`: typed, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from core.api import ConfigError, EngineConfig, did_you_mean

BACKENDS = {
    "guidance": "llguidance",
    "outlines": "outlines_core",
    "lm-format-enforcer": "lm_format_enforcer",
}
"""vLLM's names of backends to ours."""
BEAR_AMBIGUITY = frozenset(["llguidance"])
"""Backends that follow all ways to read a text at once, so that their number costs nothing."""
DISTRIBUTIONS = {
    "llguidance": "engine-llguidance",
    "outlines_core": "engine-outlines-core",
    "lm_format_enforcer": "engine-lm-format-enforcer",
}
"""What brings the backends that are installed apart."""


@dataclass(frozen=True, slots=True)
class StructuredOutputsConfig:
    """The option's values; names and defaults as in vLLM, and bounds of what one client may cost."""

    backend: str = "auto"
    disable_fallback: bool = False
    """Refuse what the first backend cannot serve, rather than try the next."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    """What backends do in any case: objects have the properties their schema names."""
    reasoning_parser: str = ""
    enable_in_reasoning: bool = False
    """Hold thoughts to the form too."""
    compile_timeout_s: float = 10.0
    """Most CPU time that reading and compiling one constraint may take."""
    compile_memory_bytes: int = 1 << 30
    """Most memory of one compiled constraint and the masks under it."""
    mask_budget_s: float = 1.0
    """Most CPU time for the mask of one token."""
    output_budget_s: float = 60.0
    """Most CPU time for all masks of one output together."""
    max_constraints: int = 64
    """Constraints that are kept at once; each has a process of its own."""
    cache_bytes: int = 512 << 20
    """Room for compiled constraints that nobody uses at the moment."""
    warm_up: bool = True
    """A server has loaded what the first constraint needs before it is ready."""

    def __post_init__(self) -> None:
        bounds = (
            "compile_timeout_s",
            "compile_memory_bytes",
            "mask_budget_s",
            "output_budget_s",
            "max_constraints",
        )
        for name in bounds:
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise ConfigError(
                    f"--structured-outputs-config.{name} must be a positive number, not {value!r}."
                )
        if self.cache_bytes < 0:
            raise ConfigError(
                "--structured-outputs-config.cache_bytes must not be negative, not "
                f"{self.cache_bytes}."
            )
        if self.disable_any_whitespace and self.backend not in (
            "xgrammar",
            "guidance",
            "llguidance",
        ):
            raise ConfigError(
                "disable_any_whitespace is only supported for xgrammar and guidance backends."
            )

    @classmethod
    def of(cls, config: EngineConfig) -> StructuredOutputsConfig:
        """Return the settings of a configuration. Raises `ConfigError` naming the key."""
        given: dict[str, Any] = dict(config.options.get("structured_outputs_config") or {})
        known = {field.name: type(field.default) for field in fields(cls)}
        for name, value in given.items():
            if name not in known:
                raise ConfigError(
                    "--structured-outputs-config has no "
                    f"{name!r}{did_you_mean(name, known) or '; known: '}"
                    f"{'' if did_you_mean(name, known) else ', '.join(known)}."
                )
            if known[name] is float and type(value) is int:
                value = float(value)
            if type(value) is not known[name]:
                raise ConfigError(
                    f"--structured-outputs-config.{name} must be of type {known[name].__name__}, "
                    f"not {value!r}."
                )
        return cls(**given)

    @property
    def wanted(self) -> str:
        """Name of the backend's entry, or "auto"."""
        return BACKENDS.get(self.backend, self.backend)

    @property
    def cure(self) -> str:
        """Return what to do when the wanted backend is not loaded."""
        distribution = DISTRIBUTIONS.get(self.wanted)
        if distribution is None:
            return ""
        return (
            f". The backend {self.backend!r} is installed apart: `pip install "
            f"plugins/{distribution}` in a checkout of "
            "the engine"
        )

    def reasoning_parser_of(self, config: EngineConfig, registry: Any) -> Any:
        """Return the entry of what tells thoughts from the answer; None where all of an output is
        held to the form.

        Raises `ConfigError` for a parser that is not there.
        """
        asked = config.options.get("reasoning_parser")
        name = asked or self.reasoning_parser
        if not name:
            return None
        try:
            found = registry.choose("reasoning_parsers", name)
        except ConfigError as error:
            flag = "--reasoning-parser" if asked else "--structured-outputs-config.reasoning_parser"
            raise ConfigError(f"{flag}: {error}") from error
        return None if self.enable_in_reasoning else found
