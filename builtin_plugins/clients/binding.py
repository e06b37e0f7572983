"""Cores and GPUs of each engine: its share of the machine, within as few NUMA nodes as possible."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from builtin_plugins.clients.ranks import RANK, place_here, ranks_here
from builtin_plugins.launchers.api import is_local
from core.api import ConfigError, EngineConfig

log = logging.getLogger(__name__)

BINDING: Final = "data_parallel_cpu_binding"
"""Option that turns the binding off."""
SYSTEM: Final = Path("/sys/devices/system")
GPUS: Final = Path("/proc/driver/nvidia/gpus")
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"


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
    config: EngineConfig,
    rank: int,
    environment: Mapping[str, str] = os.environ,
    gpus: Path = GPUS,
) -> dict[str, str]:
    """Return the environment that gives an engine a GPU of its own; empty for one GPU or none.

    With fewer engines on this machine than GPUs, the first ones are used.

    Raises `ConfigError` for fewer GPUs than engines.
    """
    if config.device.device == "cpu" or not is_local(config):
        return {}
    devices = _visible_gpus(environment, gpus)
    num_engines = ranks_here(config)
    if len(devices) < 2:
        return {}
    if len(devices) < num_engines:
        raise ConfigError(
            f"--data-parallel-size: got {num_engines} engines; expected at most one for each of "
            f"{len(devices)} GPUs. Lower it, or use --device cpu."
        )
    return {VISIBLE: devices[place_here(config, rank)]}


def _visible_gpus(environment: Mapping[str, str], gpus: Path) -> Sequence[str]:
    named = environment.get(VISIBLE)
    if named is not None:
        return [each.strip() for each in named.split(",") if each.strip()]
    try:
        return [str(index) for index in range(len(list(gpus.iterdir())))]
    except OSError:
        return []
