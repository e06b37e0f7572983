"""What the user has set of adapters: how many, how large, which ones from the start, and where
files may lie.
"""

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
MOST_ADAPTER_BYTES: Final = 8 << 30
"""Of one adapter's file: more is no low-rank adapter, whatever it says."""
Rank = Literal[1, 8, 16, 32, 64, 128, 256, 320, 512]


@dataclass(frozen=True, slots=True)
class Module:
    """An adapter that is served from the start."""

    name: str
    path: str
    """A folder, a hub id, or a name that a plugin knows, as `demo:pirate`."""
    base_model_name: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of this plugin, checked."""

    max_loras: int
    """Slots: adapters in one batch."""
    max_rank: int
    max_held: int
    """Adapters in host memory, those in slots among them."""
    dtype: str
    fully_sharded: bool
    modules: tuple[Module, ...]
    roots: tuple[Path, ...]
    """Folders that adapters named at run time may lie in; none: anywhere."""
    most_bytes: int

    @classmethod
    def of(cls, config: EngineConfig) -> Settings | None:
        """Return the settings, None where adapters are off.

        Raises `ConfigError` for what cannot be served.
        """
        options = config.options
        modules = tuple(read_module(text) for text in options.get("lora_modules") or ())
        if options.get("default_mm_loras"):
            raise ConfigError(
                "--default-mm-loras: Default modality-specific LoRA(s) were provided for a non "
                "multimodal model; images "
                "and audio are not part of this version. Leave it out."
            )
        if not (options.get("enable_lora") or modules):
            return None
        names = [module.name for module in modules]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(
                f"--lora-modules names {twice!r} twice; give each adapter a name of its own."
            )
        slots = options.get("max_loras", 1)
        held = options.get("max_cpu_loras") or 0
        if 0 < held < slots:
            raise ConfigError(
                f"--max-cpu-loras {held} is less than --max-loras {slots}; use at least {slots}."
            )
        _check_guesses(config)
        dtype = options.get("lora_dtype") or "auto"
        if dtype not in DTYPES:
            raise ConfigError(
                f"--lora-dtype {dtype!r:.50} is not served; it is one of {', '.join(DTYPES)}."
            )
        return cls(
            max_loras=slots,
            max_rank=options.get("max_lora_rank", 16),
            max_held=max(held, slots),
            dtype=dtype,
            fully_sharded=bool(options.get("fully_sharded_loras")),
            modules=modules,
            roots=tuple(
                Path(root).expanduser().resolve() for root in options.get("lora_roots") or ()
            ),
            most_bytes=options.get("max_lora_bytes", MOST_ADAPTER_BYTES),
        )


def _check_guesses(config: EngineConfig) -> None:
    """Raise `ConfigError` where a step has no room for every row's token and guesses: rows of one
    adapter would wait.
    """
    guesses = (config.options.get("speculative_config") or {}).get("num_speculative_tokens") or 0
    room = config.scheduler.max_num_batched_tokens
    rows = config.scheduler.max_num_seqs
    if guesses and room is not None and rows is not None and room < rows * (guesses + 1):
        raise ConfigError(
            f"--max-num-batched-tokens {room} is less than {rows} rows of {guesses + 1} tokens, "
            "which adapters and guesses need "
            "together. Consider increasing max_num_batched_tokens or decreasing "
            "num_speculative_tokens."
        )


_KEYS: Final = ("name", "path", "base_model_name")


def read_module(text: str) -> Module:
    """Return an adapter as `NAME=PATH` or JSON has it. Raises `ConfigError`."""
    shown = f"--lora-modules {text!r:.200}"
    if not text.lstrip().startswith("{"):
        name, equals, path = text.partition("=")
        if not (equals and name.strip() and path.strip()):
            raise ConfigError(
                f"{shown} is neither NAME=PATH nor JSON such as "
                f'{{"name": "a", "path": "/adapters/a"}}.'
            )
        return Module(name.strip(), path.strip())
    try:
        found: Mapping[str, Any] = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{shown} is no JSON ({error}).") from error
    for key, value in found.items():
        if key not in _KEYS:
            raise ConfigError(
                f"{shown}: {key!r} is not known{did_you_mean(key, _KEYS)}; known: "
                f"{', '.join(_KEYS)}."
            )
        if not isinstance(value, str) and not (value is None and key == "base_model_name"):
            raise ConfigError(f"{shown}: {key} must be a text, not {value!r}.")
    if not (found.get("name") and found.get("path")):
        raise ConfigError(f"{shown} needs name and path.")
    return Module(found["name"], found["path"], found.get("base_model_name"))
