"""`--structured-outputs-config`: typed and validated."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from core.api import ConfigError, EngineConfig, Registry, did_you_mean

BACKENDS = {
    "guidance": "llguidance",
    "outlines": "outlines_core",
    "lm-format-enforcer": "lm_format_enforcer",
}
"""Backend entries by vLLM's names."""
AMBIGUITY_TOLERANT = frozenset(["llguidance"])
"""Backends that follow all parses of a text at once, so ambiguity costs nothing."""
EXACT = frozenset(["llguidance"])
"""Backends that hold schemas, regexes and choices exactly or refuse them: no other backend, which
may ignore what they refuse, is tried then."""
DISTRIBUTIONS = {
    "outlines_core": "engine-outlines-core",
    "lm_format_enforcer": "engine-lm-format-enforcer",
}
"""Distributions of backends that are installed separately."""


@dataclass(frozen=True, slots=True)
class StructuredOutputsConfig:
    """The option's values: vLLM's names and defaults, and bounds on the cost of one client."""

    backend: str = "auto"
    """`xgrammar`, `guidance`, `outlines`, `lm-format-enforcer`, another entry's name, or `auto`."""
    disable_fallback: bool = False
    """Reject what the first backend cannot serve instead of trying the next."""
    disable_any_whitespace: bool = False
    """Generate compact JSON (xgrammar and guidance)."""
    disable_additional_properties: bool = False
    """Accepted for compatibility: objects only have the properties that their schema names."""
    reasoning_parser: str = ""
    """Reasoning parser, if `--reasoning-parser` is not set."""
    enable_in_reasoning: bool = False
    """Constrain the reasoning too."""
    compile_timeout_s: float = 10.0
    """Maximum CPU seconds of reading and compiling one constraint."""
    compile_memory_bytes: int = 1 << 30
    """Maximum memory of one constraint and its masks."""
    mask_budget_s: float = 1.0
    """Maximum CPU seconds of the mask of one token."""
    output_budget_s: float = 60.0
    """Maximum CPU seconds of all masks of one output."""
    max_constraints: int = 64
    """Maximum number of constraints in use or cached; each has its own process."""
    cache_bytes: int = 512 << 20
    """Maximum memory of cached constraints that no output uses."""
    warm_up: bool = True
    """Load the grammar library when the engine starts, without delaying it."""

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
                    f"--structured-outputs-config.{name}: got {value!r}; expected a number > 0."
                )
        if self.cache_bytes < 0:
            raise ConfigError(
                f"--structured-outputs-config.cache_bytes: got {self.cache_bytes}; expected >= 0."
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
                hint = did_you_mean(name, known) or f"; known: {', '.join(known)}"
                raise ConfigError(f"--structured-outputs-config has no {name!r}{hint}.")
            if known[name] is float and type(value) is int:
                value = float(value)
            if type(value) is not known[name]:
                raise ConfigError(
                    f"--structured-outputs-config.{name}: got {value!r}; expected type "
                    f"{known[name].__name__}."
                )
        return cls(**given)

    @property
    def backend_entry(self) -> str:
        """Name of the backend's entry, or "auto"."""
        return BACKENDS.get(self.backend, self.backend)

    @property
    def install_hint(self) -> str:
        """How to install the backend if it is not loaded; "" if it is not a known one."""
        distribution = DISTRIBUTIONS.get(self.backend_entry)
        if distribution is None:
            return ""
        return (
            f". The backend {self.backend!r} is installed separately: `pip install "
            f"plugins/{distribution}` in a checkout of the engine"
        )

    def check_names(self, config: EngineConfig, registry: Registry) -> None:
        """Raise `ConfigError` for an unknown backend or reasoning parser."""
        self.reasoning_parser_of(config, registry)
        if self.backend_entry != "auto":
            try:
                registry.choose("grammar_backends", self.backend_entry)
            except ConfigError as error:
                raise ConfigError(f"{error}{self.install_hint}.") from error

    def reasoning_parser_of(self, config: EngineConfig, registry: Registry) -> Any:
        """Return the entry of the reasoning parser; None if the whole output is constrained.

        Raises `ConfigError` for an unknown parser.
        """
        flagged = config.options.get("reasoning_parser")
        name = flagged or self.reasoning_parser
        if not name:
            return None
        try:
            found = registry.choose("reasoning_parsers", name)
        except ConfigError as error:
            flag = (
                "--reasoning-parser" if flagged else "--structured-outputs-config.reasoning_parser"
            )
            raise ConfigError(f"{flag}: {error}") from error
        return None if self.enable_in_reasoning else found
