"""LoRA settings: limits, adapters loaded at startup, and allowed folders."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from core.api import ConfigError, EngineConfig, did_you_mean

NAME: Final = "lora"
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
DTYPES: Final = ("auto", "float16", "bfloat16", "float32")
DEFAULT_MAX_BYTES: Final = 8 << 30
"""Default maximum size of an adapter's file, in bytes; a low-rank adapter is smaller."""
Rank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]


@dataclass(frozen=True, slots=True)
class LoraModule:
    """An adapter that is served from startup."""

    name: str
    path: str
    """A folder, a hub id, or a name known to a plugin, such as `demo:pirate`."""
    base_model_name: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of this plugin, validated."""

    max_loras: int
    """Slots: adapters in one batch."""
    max_rank: int
    max_cpu_loras: int
    """Adapters in host memory, slots included."""
    dtype: str
    fully_sharded: bool
    modules: tuple[LoraModule, ...]
    roots: tuple[Path, ...]
    """Folders that run-time adapters may lie in; empty: any."""
    max_bytes: int

    @classmethod
    def of(cls, config: EngineConfig) -> Settings | None:
        """Return the settings, None if LoRA is off. Raises `ConfigError` for unsupported ones."""
        options = config.options
        modules = tuple(read_module(text) for text in options.get("lora_modules") or ())
        if options.get("default_mm_loras"):
            raise ConfigError(
                "--default-mm-loras: Default modality-specific LoRA(s) were provided for a non "
                "multimodal model; images and audio are not supported. Remove the flag."
            )
        if not (options.get("enable_lora") or modules):
            return None
        names = [module.name for module in modules]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(
                f"--lora-modules: got {twice!r} twice; expected distinct names. Rename one adapter."
            )
        slots = options.get("max_loras", 1)
        held = options.get("max_cpu_loras") or 0
        if 0 < held < slots:
            raise ConfigError(
                f"--max-cpu-loras: got {held}; expected at least --max-loras {slots}. Raise it."
            )
        _check_token_budget(config)
        dtype = options.get("lora_dtype") or "auto"
        if dtype not in DTYPES:
            raise ConfigError(
                f"--lora-dtype: got {dtype!r:.50}; expected one of {', '.join(DTYPES)}."
            )
        return cls(
            max_loras=slots,
            max_rank=options.get("max_lora_rank", 16),
            max_cpu_loras=max(held, slots),
            dtype=dtype,
            fully_sharded=bool(options.get("fully_sharded_loras")),
            modules=modules,
            roots=tuple(
                Path(root).expanduser().resolve() for root in options.get("lora_roots") or ()
            ),
            max_bytes=options.get("max_lora_bytes", DEFAULT_MAX_BYTES),
        )


def _check_token_budget(config: EngineConfig) -> None:
    """Raise `ConfigError` if a step has no budget for the token and draft tokens of every row."""
    speculation = config.options.get("speculative_config") or {}
    num_draft_tokens = (
        config.options.get("spec_tokens") or speculation.get("num_speculative_tokens") or 0
    )
    budget = config.scheduler.max_num_batched_tokens
    rows = config.scheduler.max_num_seqs
    if (
        num_draft_tokens
        and budget is not None
        and rows is not None
        and budget < rows * (num_draft_tokens + 1)
    ):
        raise ConfigError(
            f"--max-num-batched-tokens: got {budget}; expected at least {rows} rows of "
            f"{num_draft_tokens + 1} tokens for LoRA with draft tokens. Consider increasing "
            "max_num_batched_tokens or decreasing num_speculative_tokens."
        )


_KEYS: Final = ("name", "path", "base_model_name")


def read_module(text: str) -> LoraModule:
    """Return an adapter from `NAME=PATH` or JSON. Raises `ConfigError`."""
    given = f"--lora-modules {text!r:.200}"
    if not text.lstrip().startswith("{"):
        name, equals, path = text.partition("=")
        if not (equals and name.strip() and path.strip()):
            raise ConfigError(
                f'{given}: expected NAME=PATH or JSON such as {{"name": "a", "path": '
                '"/adapters/a"}.'
            )
        return LoraModule(name.strip(), path.strip())
    try:
        found: Mapping[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{given}: expected JSON ({error}).") from error
    for key, value in found.items():
        if key not in _KEYS:
            raise ConfigError(
                f"{given}: got key {key!r}{did_you_mean(key, _KEYS)}; expected one of "
                f"{', '.join(_KEYS)}."
            )
        if not isinstance(value, str) and not (value is None and key == "base_model_name"):
            raise ConfigError(f"{given}: {key}: got {value!r}; expected a string.")
    if not (found.get("name") and found.get("path")):
        raise ConfigError(f"{given}: expected both name and path.")
    return LoraModule(found["name"], found["path"], found.get("base_model_name"))
