"""Embeddings of n-grams that a layer adds to its residual streams, as data (Qwen4-Exp)."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ModelError

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
SEED_STEP = 10007


@dataclass(frozen=True, slots=True, kw_only=True)
class NgramSpec:
    """Hashed n-grams of the last tokens give a value and a key for each residual stream."""

    index: int
    """Number of this layer among those with n-grams."""
    vocab_size: int
    """Tokens that are hashed."""
    width: int
    """Width of the embeddings of all heads together."""
    size: int
    """Tokens of the longest n-gram."""
    heads: int
    """Hash functions per length, each with an embedding of its own."""
    min_rows: int
    """Rows of a head's table: the next primes from here."""
    multiple: int
    """Divisor of the number of rows of all tables together."""
    shards: int
    """Tensors of the tables in a checkpoint."""
    separator: int
    """Token that n-grams do not reach across."""
    kernel: int
    """Kernel size of the convolution; its taps are `size` tokens apart."""
    seed: int
    eps: float
    """Epsilon of the norms."""

    def __post_init__(self) -> None:
        if self.size < 2 or self.width % ((self.size - 1) * self.heads):
            raise ModelError(
                f"ple_embed_dim: got {self.width}; expected a multiple of heads_per_ngram "
                f"{self.heads} times ngram_size {self.size} less 1. Restore the model's own "
                "config.json."
            )

    @property
    def rows(self) -> list[int]:
        """Rows of each head's table, those of bigrams first."""
        count = (self.size - 1) * self.heads
        found: list[int] = []
        candidate = self.min_rows - 1
        while len(found) < (self.index + 1) * count:
            candidate += 1
            if _is_prime(candidate):
                found.append(candidate)
        return found[-count:]

    @property
    def multipliers(self) -> list[int]:
        """Odd factors of a token and of those before it, of which a product fits 63 bits."""
        half = max(1, ((1 << 63) - 1) // self.vocab_size // 2)
        first = self.seed + SEED_STEP * self.index
        return [2 * (_mix(first + GAMMA * (i + 1)) % half) + 1 for i in range(self.size)]


def _mix(value: int) -> int:
    """Return the next number of SplitMix64."""
    value = (value + GAMMA) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def _is_prime(value: int) -> bool:
    return value > 1 and all(value % divisor for divisor in range(2, int(value**0.5) + 1))
