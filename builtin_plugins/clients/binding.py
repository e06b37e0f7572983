"""Cores and GPUs of each engine: its share of the machine, within as few NUMA nodes as possible."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from builtin_plugins.clients.ranks import RANK, place_here, ranks_here
from builtin_plugins.launchers.api import is_local
from builtin_plugins.platforms.api import VISIBLE_GPUS, visible_gpus
from core.api import ConfigError, EngineConfig

log = logging.getLogger(__name__)

BINDING: Final = "data_parallel_cpu_binding"
"""Option that turns the binding off."""
SYSTEM: Final = Path("/sys/devices/system")


def bind_to_share(config: EngineConfig) -> None:
    """Bind this process, and threads and ranks that it starts, to its engine's share of the cores.

    Another launcher than `local` decides itself where its processes run, and with which devices.

    Memory comes from the node of the core that touches it first, so it is local as well.
    """
    rank: int | None = config.options.get(RANK)
    num_engines = ranks_here(config)
    if rank is None or num_engines == 1 or config.options.get(BINDING) == "none":
        return
    if not hasattr(os, "sched_setaffinity") or not is_local(config):
        return
    parallel = config.parallel
    threads = config.device.num_threads or 1
    needed = threads * parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    cores = share_of_cores(os.sched_getaffinity(0), place_here(config, rank), num_engines)
    if len(cores) < needed:
        log.info(
            "engine %d is not bound to cores: its share is %d, its threads are %d",
            rank,
            len(cores),
            needed,
        )
        return
    os.sched_setaffinity(0, cores)
    log.info("engine %d is bound to cores %s", rank, format_cores(cores))


def share_of_cores(
    usable: Iterable[int], position: int, num_engines: int, system: Path = SYSTEM
) -> set[int]:
    """Return the cores of the engine at `position` of `num_engines`; none if there are too few.

    Hyperthreads of one core stay together, and so do cores of one NUMA node.
    """
    node_of = _nodes(system)
    usable = set(usable)
    ordered = sorted(
        usable, key=lambda cpu: (node_of.get(cpu, 0), _first_sibling(cpu, system), cpu)
    )
    whole = [list(cpus) for _, cpus in groupby(ordered, lambda cpu: _first_sibling(cpu, system))]
    units = whole if len(whole) >= num_engines else [[cpu] for cpu in ordered]
    first = len(units) * position // num_engines
    end = len(units) * (position + 1) // num_engines
    return {cpu for unit in units[first:end] for cpu in unit}


def format_cores(cores: Iterable[int]) -> str:
    """Return cores as Linux writes them: `0-3,8`."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


def _nodes(system: Path) -> dict[int, int]:
    """Return the NUMA node of each core."""
    found = {}
    for folder in (system / "node").glob("node[0-9]*"):
        for cpu in _cores(folder / "cpulist"):
            found[cpu] = int(folder.name.removeprefix("node"))
    return found


def _first_sibling(cpu: int, system: Path) -> int:
    siblings = _cores(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")
    return min(siblings, default=cpu)


def _cores(path: Path) -> list[int]:
    """Read a list of cores as Linux writes it; empty for a file that is not there."""
    try:
        text = path.read_text().strip()
    except OSError:
        return []
    found: list[int] = []
    for run in filter(None, re.split(r"[,\s]+", text)):
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def device_environment(
    config: EngineConfig, rank: int, gpus: Sequence[str] | None = None
) -> dict[str, str]:
    """Return the environment that gives each rank of an engine a GPU; empty for one GPU or none.

    `gpus`: GPUs of this process; default: those that it may use. With more GPUs than ranks of all
    engines on this machine, the first ones are used.

    Raises `ConfigError` for fewer GPUs than ranks.
    """
    if config.device.device == "cpu" or not is_local(config):
        return {}
    gpus = visible_gpus() if gpus is None else gpus
    num_engines = ranks_here(config)
    parallel = config.parallel
    size = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
    if len(gpus) < 2:
        return {}
    if len(gpus) < num_engines * size:
        ranks = "" if size == 1 else f" of {size} ranks"
        raise ConfigError(
            f"--data-parallel-size: got {num_engines} engines{ranks}; expected at most one rank "
            f"for each of {len(gpus)} GPUs. Lower it, or use --device cpu."
        )
    first = place_here(config, rank) * size
    return {VISIBLE_GPUS: ",".join(gpus[first : first + size])}
