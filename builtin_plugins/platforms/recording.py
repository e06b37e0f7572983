"""Which steps a platform records: `-O`, `--compilation-config`, `--cudagraph-capture-sizes` and
`--enforce-eager`, checked.

The names are vLLM's. What asks for another compiler is refused: kernels here are written, and torch
compiles nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from core.api import ConfigError, EngineConfig, Option, Within, did_you_mean

FLAG: Final = "--compilation-config"
OFF: Final = (0, "0", "NONE", "none")
MODES: Final[Mapping[str, tuple[bool, bool]]] = {
    "NONE": (False, False),
    "FULL_DECODE_ONLY": (True, False),
    "FULL": (True, True),
    "FULL_AND_PIECEWISE": (True, True),
}
"""By `cudagraph_mode`: whether steps in which all rows decode are recorded, and whether others are.
"""
LEVELS: Final = {"O0": "NONE", "O1": "FULL_DECODE_ONLY", "O2": "FULL", "O3": "FULL"}
KEYS: Final = (
    "cudagraph_capture_sizes",
    "cudagraph_mode",
    "level",
    "max_cudagraph_capture_size",
    "mode",
)
OF_COMPILERS: Final = frozenset(
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
"""Keys of vLLM's that have no meaning here."""
MOST_TOKENS: Final = 1 << 20
"""Of a step that is asked to be recorded."""


def options() -> list[Option]:
    """Return the options that `Recording` reads."""
    levels = "Steps that are recorded and done again: O0 none, O1 those in which every row decodes, O2 and O3 all small ones."
    keys = "JSON, or keys one by one: cudagraph_mode, cudagraph_capture_sizes, max_cudagraph_capture_size; mode is 0."
    sizes = "Numbers of tokens that steps are recorded for on GPUs."
    most = "Most tokens of a step that is recorded on GPUs."
    return [
        Option("optimization_level", Literal["O0", "O1", "O2", "O3", 0, 1, 2, 3], "O2", levels),
        Option("compilation_config", dict[str, Any] | Annotated[int, Within(0, 3)], {}, keys),
        Option(
            "cudagraph_capture_sizes",
            list[Annotated[int, Within(1, MOST_TOKENS)]] | None,
            None,
            sizes,
        ),
        Option(
            "max_cudagraph_capture_size", Annotated[int, Within(0, MOST_TOKENS)] | None, None, most
        ),
    ]


@dataclass(frozen=True, slots=True)
class Recording:
    """What was asked for."""

    decodes: bool
    """Steps in which every row decodes."""
    mixed: bool
    """Others as well."""
    sizes: tuple[int, ...] | None
    """Numbers of tokens, rising; None: the platform's own."""
    most: int | None
    """Tokens; None: the platform's own limit."""
    stated: str
    """The first option that asks for graphs in particular, as it was given; empty: none does."""
    is_eager: bool
    """Every step is to be a plain call, on platforms without graphs too: `--enforce-eager`, or
    `-O0`.
    """

    @classmethod
    def of(cls, config: EngineConfig) -> Recording:
        """Return what the options say; the more particular one holds.

        Raises `ConfigError` naming what cannot be done.
        """
        given = config.options.get("compilation_config") or {}
        keys: Mapping[str, Any] = given if isinstance(given, Mapping) else {"mode": given}
        for key, value in keys.items():
            _check_key(key, value)
        level = config.options.get("optimization_level", "O2")
        mode = keys.get("cudagraph_mode")
        sizes = _one_of("cudagraph_capture_sizes", keys, config)
        most = _one_of("max_cudagraph_capture_size", keys, config)
        usual = LEVELS[f"O{str(level).removeprefix('O')}"]
        decodes, mixed = MODES[usual if mode is None else _mode(mode)]
        if config.model.enforce_eager or sizes == [] or most == 0:
            decodes = mixed = False
        stated = {"cudagraph_mode": mode not in (None, *OFF), "cudagraph_capture_sizes": sizes}
        stated["max_cudagraph_capture_size"] = most
        return cls(
            decodes,
            mixed,
            None if sizes is None else _sizes(sizes),
            None if most is None else _whole("max_cudagraph_capture_size", most, 0),
            next((_flag(name, keys) for name, said in stated.items() if said), ""),
            config.model.enforce_eager or usual == "NONE",
        )


def _check_key(key: str, value: Any) -> None:
    if key in OF_COMPILERS:
        if value not in (None, "", False, [], {}):
            raise ConfigError(
                f"{FLAG}.{key} {value!r:.80}: nothing is compiled by torch here, so there is "
                "nothing that it would change. "
                "Leave it out."
            )
    elif key not in KEYS:
        raise ConfigError(
            f"{FLAG}.{key} is not known{did_you_mean(key, KEYS)}. Known are {', '.join(KEYS)}."
        )
    elif key in ("mode", "level") and (isinstance(value, bool) or value not in OFF):
        raise ConfigError(
            f"{FLAG}.{key} {value!r:.80} asks for torch.compile, which is not used: kernels are "
            "written for each device. Say 0 "
            "(NONE), or leave it out; -O and cudagraph_mode say which steps are recorded."
        )


def _flag(name: str, keys: Mapping[str, Any]) -> str:
    return f"{FLAG}.{name}" if keys.get(name) is not None else f"--{name.replace('_', '-')}"


def _mode(value: Any) -> str:
    name = "NONE" if not isinstance(value, bool) and value in OFF else str(value).upper()
    if name not in MODES:
        why = (
            " (attention is recorded with the rest of a step, so there are no graphs between)"
            if name == "PIECEWISE"
            else ""
        )
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
            f"{FLAG}.cudagraph_capture_sizes {value!r:.80} is no list of numbers of tokens, as [1, "
            "2, 4, 8]."
        )
    return tuple(sorted({_whole("cudagraph_capture_sizes", each, 1) for each in value}))


def _whole(name: str, value: Any, least: int) -> int:
    if type(value) is not int or value < least:
        raise ConfigError(
            f"--{name.replace('_', '-')} {value!r:.80} is no whole number of tokens, at least "
            f"{least}."
        )
    return value
