"""Which ranks of `--data-parallel-size` this server has, and how many share its machine.

A server has all ranks and balances itself (internal), one rank for a load balancer outside
(external), or some of the ranks of several servers (hybrid).
"""

from __future__ import annotations

from typing import Final

from core.api import ConfigError, EngineConfig

RANK: Final = "data_parallel_rank"
"""Option: in a server's configuration its only rank, in an engine's configuration its own."""
START: Final = "data_parallel_start_rank"
SIZE_LOCAL: Final = "data_parallel_size_local"
BACKEND: Final = "data_parallel_backend"
MP: Final = "mp"
"""Backend that leaves the launcher to `--launcher`."""


def local_ranks(config: EngineConfig) -> range:
    """Return the ranks of this server's engines.

    Raises `ConfigError` for flags that contradict each other.
    """
    options = config.options
    size = config.parallel.data_parallel_size
    backend = options.get(BACKEND, MP)
    if backend != MP and size == 1:
        raise ConfigError(
            f"--data-parallel-backend: got {backend} with one engine; expected "
            f"--data-parallel-size 2 or more. Use --launcher {backend} for one engine."
        )
    rank: int | None = options.get(RANK)
    start: int | None = options.get(START)
    local: int | None = options.get(SIZE_LOCAL)
    is_external = bool(options.get("data_parallel_external_lb"))
    is_hybrid = bool(options.get("data_parallel_hybrid_lb"))
    if is_hybrid and (is_external or rank is not None):
        raise ConfigError(
            "--data-parallel-hybrid-lb: got an external load balancer as well "
            "(--data-parallel-external-lb, --data-parallel-rank); expected one mode. Remove one."
        )
    _check("--data-parallel-size-local", local, 1, size, size)
    if is_external and rank is None:
        raise ConfigError(
            "--data-parallel-external-lb: got no --data-parallel-rank; expected the rank of this "
            f"server, 0 to {size - 1}. Add it."
        )
    if rank is not None:
        if start is not None:
            raise ConfigError(
                f"--data-parallel-start-rank: got {start} with --data-parallel-rank {rank}; "
                "expected one of them. Remove it."
            )
        _check("--data-parallel-rank", rank, 0, size - 1, size)
        return range(rank, rank + 1)
    if not is_hybrid and start is None:
        if local not in (None, size):
            raise ConfigError(
                f"--data-parallel-size-local: got {local} of --data-parallel-size {size}; expected "
                f"{size}, since engines on other hosts are not part of this version. Remove it, or "
                "add --data-parallel-hybrid-lb for one server per host."
            )
        return range(size)
    if local is None:
        raise ConfigError(
            "--data-parallel-hybrid-lb: got no --data-parallel-size-local; expected the number of "
            "engines of this server. Add it."
        )
    start = start or 0
    _check("--data-parallel-start-rank", start, 0, size - local, size)
    return range(start, start + local)


def ranks_here(config: EngineConfig) -> int:
    """Return how many engines share this machine."""
    local: int | None = config.options.get(SIZE_LOCAL)
    return local or config.parallel.data_parallel_size


def place_here(config: EngineConfig, rank: int) -> int:
    """Return the number of an engine among those of this machine."""
    start: int | None = config.options.get(START)
    return rank % ranks_here(config) if start is None else rank - start


def _check(flag: str, value: int | None, low: int, high: int, size: int) -> None:
    if value is not None and not low <= value <= high:
        raise ConfigError(
            f"{flag}: got {value}; expected {low} to {high} with --data-parallel-size {size}. "
            "Correct it."
        )
