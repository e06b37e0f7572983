"""Estimates tokens per second on this machine's CPU, from a measurement of less than a second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from core.api import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from core_kernels.speed import Speed

    from core import MemoryPlan

FLOATS: Final = ("float32", "bfloat16", "float16")
SMALL_SHARE: Final = 0.02
"""Share of the weights below which a kind of storage is not measured."""
INT8_SHARE: Final = (8 + 16 / 128) / 16
"""Bytes of eight-bit weights with their scales, of those of sixteen bits."""
INT8: Final = "int8"
PACKED: Final = ("int4", "fp8")
"""Kinds of packed storage with their own speed, named by --quantization; others are as int8."""


@dataclass(frozen=True, slots=True)
class TokenRates:
    """Estimated tokens per second, without attention and sampling."""

    decode: float
    """Output tokens of one request."""
    prefill: float
    """Tokens of prompts."""


@dataclass(frozen=True, slots=True)
class SpeedEstimate:
    """What a model makes of this machine, and what it would make of it with int8 weights."""

    isa: str
    threads: int
    rates: TokenRates
    with_int8: TokenRates | None
    """With `--quantization int8`; None where the weights are not plain or it is not faster."""

    def as_json(self) -> dict[str, Any]:
        """Return the estimate as JSON data."""
        int8 = self.with_int8
        return {
            "isa": self.isa,
            "threads": self.threads,
            "decode_tokens_per_s": self.rates.decode,
            "prefill_tokens_per_s": self.rates.prefill,
            "int8_decode_tokens_per_s": None if int8 is None else int8.decode,
            "int8_prefill_tokens_per_s": None if int8 is None else int8.prefill,
        }


def estimate_speed(plan: MemoryPlan) -> SpeedEstimate | None:
    """Return the estimate; None on other devices, and without the C++ library."""
    import torch  # lazy: slow to import
    from core_kernels.library import load_library, use_isa  # lazy: loads torch
    from core_kernels.speed import measure_speed  # lazy: loads torch

    if plan.config.device.device != "cpu":
        return None
    try:
        use_isa(plan.config.options.get("isa") or "")
    except ValueError as error:
        raise ConfigError(f"--isa: {error}.") from error
    library = load_library()
    if library is None:
        return None
    threads = plan.config.device.num_threads or torch.get_num_threads()
    library.core_kernels_threads(threads)
    stored = stored_kinds(plan.token_bytes, plan.config.model.quantization or "")
    plain = not plan.config.model.quantization and set(stored) <= {"bfloat16", "float16"}
    speeds = {kind: measure_speed(library, kind) for kind in (*stored, *[INT8] * plain)}
    rates = token_rates(stored, speeds)
    int8 = token_rates({INT8: sum(stored.values()) * INT8_SHARE}, speeds) if plain else None
    return SpeedEstimate(
        library.core_kernels_isa().decode(),
        threads,
        rates,
        int8 if int8 is not None and int8.decode > rates.decode else None,
    )


def stored_kinds(token_bytes: Mapping[str, int], quantization: str) -> dict[str, float]:
    """Return the bytes that a token reads by kind of storage, without negligible kinds."""
    packed = next((kind for kind in PACKED if kind in quantization), INT8)
    found: dict[str, float] = {}
    for dtype, num_bytes in token_bytes.items():
        kind = dtype if dtype in FLOATS else packed
        found[kind] = found.get(kind, 0) + num_bytes
    total = sum(found.values())
    return {kind: size for kind, size in found.items() if size > SMALL_SHARE * total}


def token_rates(stored: Mapping[str, float], speeds: Mapping[str, Speed]) -> TokenRates:
    """Return the tokens per second for weights of these bytes by kind."""
    decode_s = sum(size / speeds[kind].decode_bytes for kind, size in stored.items())
    prefill_s = sum(size / speeds[kind].prefill_bytes for kind, size in stored.items())
    return TokenRates(1 / decode_s if decode_s else 0.0, 1 / prefill_s if prefill_s else 0.0)
