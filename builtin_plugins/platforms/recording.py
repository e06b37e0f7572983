"""Validated options of CUDA graphs and recorded steps.

Reads `-O`, `--compilation-config`, `--cudagraph-capture-sizes` and `--enforce-eager`, with vLLM's
names. Options of torch.compile are rejected, because nothing is compiled by torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from core.api import ConfigError, EngineConfig, Option, Range, did_you_mean

FLAG: Final = "--compilation-config"
OFF: Final = (0, "0", "NONE", "none")
MODES: Final[Mapping[str, tuple[bool, bool]]] = {
    "NONE": (False, False),
    "FULL_DECODE_ONLY": (True, False),
    "FULL": (True, True),
    "FULL_AND_PIECEWISE": (True, True),
}
"""By `cudagraph_mode`: whether decode-only steps are recorded, and whether mixed steps are."""
LEVELS: Final = {"O0": "NONE", "O1": "FULL_DECODE_ONLY", "O2": "FULL", "O3": "FULL"}
KEYS: Final = (
    "cudagraph_capture_sizes",
    "cudagraph_mode",
    "level",
    "max_cudagraph_capture_size",
    "mode",
)
COMPILER_KEYS: Final = frozenset(
    [
        "backend",
        "bs_to_padded_graph_size",
        "cache_dir",
        "compile_cache_save_format",
        "compile_mm_encoder",
        "compile_ranges_split_points",
        "compile_sizes",
        "cudagraph_copy_inputs",
        "cudagraph_mm_encoder",
        "cudagraph_num_of_warmups",
        "cudagraph_specialize_lora",
        "custom_ops",
        "debug_dump_path",
        "dynamic_shapes_config",
        "fast_moe_cold_start",
        "full_cuda_graph",
        "inductor_compile_config",
        "inductor_passes",
        "local_cache_dir",
        "pass_config",
        "splitting_ops",
        "traced_files",
        "use_cudagraph",
        "use_inductor",
        "use_inductor_graph_partition",
    ]
)
"""vLLM's keys for torch.compile, which have no effect here."""
MAX_CAPTURE_SIZE: Final = 1 << 20
"""Upper bound of a configured capture size, in tokens."""


def options() -> list[Option]:
    """Return the options that `RecordingOptions` reads."""
    levels = "Recorded steps: O0 none, O1 decode-only steps, O2 and O3 all small steps."
    keys = (
        "JSON, or single keys: cudagraph_mode, cudagraph_capture_sizes, "
        "max_cudagraph_capture_size; mode is 0."
    )
    sizes = "CUDA graph capture sizes in tokens."
    limit = "Largest CUDA graph capture size in tokens."
    return [
        Option("optimization_level", Literal["O0", "O1", "O2", "O3", 0, 1, 2, 3], "O2", levels),
        Option("compilation_config", dict[str, Any] | Annotated[int, Range(0, 3)], {}, keys),
        Option(
            "cudagraph_capture_sizes",
            list[Annotated[int, Range(1, MAX_CAPTURE_SIZE)]] | None,
            None,
            sizes,
        ),
        Option(
            "max_cudagraph_capture_size",
            Annotated[int, Range(0, MAX_CAPTURE_SIZE)] | None,
            None,
            limit,
        ),
    ]


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """Resolved options of recorded steps."""

    decodes: bool
    """Whether decode-only steps are recorded."""
    mixed: bool
    """Whether mixed steps are recorded, too."""
    sizes: tuple[int, ...] | None
    """Capture sizes in tokens, ascending; None: the platform's default."""
    max_size: int | None
    """Maximum capture size in tokens; None: the platform's default."""
    stated: str
    """First explicit CUDA graph option as given; empty: none."""
    is_eager: bool
    """Whether every step is a plain call on every platform (`--enforce-eager` or `-O0`)."""

    @classmethod
    def from_config(cls, config: EngineConfig) -> RecordingOptions:
        """Return the resolved options; the more specific one wins. Raises `ConfigError` for invalid
        ones.
        """
        given = config.options.get("compilation_config") or {}
        keys: Mapping[str, Any] = given if isinstance(given, Mapping) else {"mode": given}
        for key, value in keys.items():
            _check_key(key, value)
        level = config.options.get("optimization_level", "O2")
        mode = keys.get("cudagraph_mode")
        sizes = _one_of("cudagraph_capture_sizes", keys, config)
        max_size = _one_of("max_cudagraph_capture_size", keys, config)
        usual = LEVELS[f"O{str(level).removeprefix('O')}"]
        decodes, mixed = MODES[usual if mode is None else _mode(mode)]
        if config.model.enforce_eager or sizes == [] or max_size == 0:
            decodes = mixed = False
        stated = {"cudagraph_mode": mode not in (None, *OFF), "cudagraph_capture_sizes": sizes}
        stated["max_cudagraph_capture_size"] = max_size
        return cls(
            decodes,
            mixed,
            None if sizes is None else _sizes(sizes),
            None if max_size is None else _whole("max_cudagraph_capture_size", max_size, 0),
            next((_flag(name, keys) for name, is_set in stated.items() if is_set), ""),
            config.model.enforce_eager or usual == "NONE",
        )


def _check_key(key: str, value: Any) -> None:
    if key in COMPILER_KEYS:
        if value not in (None, "", False, [], {}):
            raise ConfigError(
                f"{FLAG}.{key} {value!r:.80} has no effect: torch compiles nothing here. Remove it."
            )
    elif key not in KEYS:
        raise ConfigError(
            f"{FLAG}.{key} is not known{did_you_mean(key, KEYS)}. Known are {', '.join(KEYS)}."
        )
    elif key in ("mode", "level") and (isinstance(value, bool) or value not in OFF):
        raise ConfigError(
            f"{FLAG}.{key} {value!r:.80} selects torch.compile, which is not used. Set 0 (NONE) or "
            "remove it; -O and cudagraph_mode select the recorded steps."
        )


def _flag(name: str, keys: Mapping[str, Any]) -> str:
    return f"{FLAG}.{name}" if keys.get(name) is not None else f"--{name.replace('_', '-')}"


def _mode(value: Any) -> str:
    name = "NONE" if not isinstance(value, bool) and value in OFF else str(value).upper()
    if name not in MODES:
        why = " (attention is captured with the rest of a step)" if name == "PIECEWISE" else ""
        raise ConfigError(
            f"{FLAG}.cudagraph_mode {value!r:.80} is not served{why}; it is one of "
            f"{', '.join(MODES)}."
        )
    return name


def _one_of(name: str, keys: Mapping[str, Any], config: EngineConfig) -> Any:
    flag = config.options.get(name)
    if flag is not None and keys.get(name) is not None:
        raise ConfigError(f"{_flag(name, {})} and {FLAG}.{name} are both given; keep one of them.")
    return keys.get(name) if flag is None else flag


def _sizes(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ConfigError(
            f"{FLAG}.cudagraph_capture_sizes: got {value!r:.80}; expected a list of numbers of "
            "tokens, such as [1, 2, 4, 8]."
        )
    return tuple(sorted({_whole("cudagraph_capture_sizes", each, 1) for each in value}))


def _whole(name: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ConfigError(
            f"--{name.replace('_', '-')}: got {value!r:.80}; "
            f"expected an integer of at least {least}."
        )
    return value
