"""Starts processes as Ray actors; messages travel over the engine's own channels.

Ray places, starts and watches. A call of an actor takes about a millisecond, too long for plans.
"""

from __future__ import annotations

import logging
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec
import ray
from ray.exceptions import RayError
from ray.util import get_current_placement_group, placement_group, remove_placement_group
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from builtin_plugins.executors.api import (
    Credentials,
    Exit,
    RemoteChild,
    Start,
    TcpListener,
    run_remote,
)
from core.api import EngineError

if TYPE_CHECKING:
    from builtin_plugins.launchers.api import Group
    from core.api import EngineConfig, Registry

log = logging.getLogger(__name__)

HOST_AND_PORT: Final = re.compile(r"([\w.-]+):(\d+)")
CONNECT_S: Final = 10.0
"""Longest wait for a connection to the cluster."""
PLACE_S: Final = 120.0
"""Longest wait for resources."""


class Role:
    """The actor of one process."""

    def run(self, credentials: bytes) -> int:
        """Run the role of the parent that has these credentials; return the exit status."""
        found = msgspec.json.decode(credentials, type=Credentials)
        host = ray.util.get_node_ip_address()
        return run_remote(msgspec.structs.replace(found, host=host))


class ActorProcess:
    """An actor, as `RemoteChild` watches it."""

    def __init__(self, actor: Any, result: Any, placement: PlacementGroup | None) -> None:
        self._actor = actor
        self._result = result
        self._placement = placement
        self._until_s = time.monotonic() + PLACE_S

    def exit(self) -> Exit | None:
        """Return how the actor has ended; None while it runs or waits for its place."""
        if not ray.is_initialized():  # its next call would start a cluster
            return Exit("this process has left the Ray cluster", was_killed=True)
        ready, _ = ray.wait([self._result], timeout=0)
        if ready:
            self.kill()  # an actor stays after its role, as long as there is a handle
            try:
                status = ray.get(self._result)
            except RayError as error:
                return Exit(f"its actor has ended: {error}", was_killed=True)
            return Exit(f"its role ended with status {status}")
        if self._placement is not None:
            if self._placement.wait(0):
                self._placement = None
            elif time.monotonic() > self._until_s:
                bundles = self._placement.bundle_specs
                return Exit(
                    f"the Ray cluster had no room for {bundles} in {PLACE_S:g} s; it has "
                    f"{ray.cluster_resources()}. See --ray-resources and --ray-placement-strategy"
                )
        return None

    def kill(self) -> None:
        """End the actor, frozen or not."""
        if ray.is_initialized():
            ray.kill(self._actor, no_restart=True)


class RayLauncher:
    """Starts an actor per process in the placement group of its engine."""

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        del registry
        self._config = config
        self._options = config.options
        parallel = config.parallel
        self._num_ranks = parallel.tensor_parallel_size * parallel.pipeline_parallel_size
        _connect(self._options["ray_address"])
        self.host: str = ray.util.get_node_ip_address()
        self._listener = TcpListener(self.host, "address of this Ray node")
        self._placements: dict[str, PlacementGroup] = {}

    def start(
        self, what: Start, kinds: Any, environment: Mapping[str, str], group: Group
    ) -> RemoteChild:
        """Start an actor, or have Ray start it when there is room."""
        child = RemoteChild(self._listener, what, kinds)
        runtime_env = dict(self._options["ray_runtime_env"] or {})
        variables = {**environment, **runtime_env.get("env_vars", {})}
        placement = self._placement(group)
        resources = self._resources()
        if group.leads and self._num_ranks > 1:
            resources = {}  # its ranks do the work
        options: dict[str, Any] = {
            "runtime_env": {**runtime_env, "env_vars": variables},
            "max_restarts": 0,
            "num_cpus": resources.pop("CPU", 0),
            "num_gpus": resources.pop("GPU", 0),
            "resources": resources,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement, placement_group_bundle_index=what.rank if group.size > 1 else 0
            ),
        }
        actor = ray.remote(Role).options(**options).remote()
        result = actor.run.remote(msgspec.json.encode(child.credentials))
        child.process = ActorProcess(actor, result, placement)
        return child

    def _resources(self) -> dict[str, float]:
        default = {"GPU": 1.0} if self._config.device.device == "cuda" else {"CPU": 1.0}
        return dict(self._options["ray_resources"] or default)

    def _placement(self, group: Group) -> PlacementGroup:
        """Return the placement group; an engine and its ranks share one, which outlives both."""
        current = get_current_placement_group() if group.size > 1 else None
        if current is not None:
            return current
        if group.name not in self._placements:
            strategy = self._options["ray_placement_strategy"]
            bundles = [self._resources()] * self._num_ranks
            self._placements[group.name] = placement_group(bundles, strategy=strategy)
        return self._placements[group.name]

    def close(self) -> None:
        """Give up the room in the cluster, and stop listening."""
        for placement in self._placements.values() if ray.is_initialized() else ():
            remove_placement_group(placement)
        self._placements.clear()
        self._listener.close()


def _connect(address: str | None) -> None:
    """Connect this process to the cluster, unless it is; raises `EngineError` if that fails."""
    if ray.is_initialized():
        return
    with _own_signals():
        try:
            if address is not None and (found := HOST_AND_PORT.fullmatch(address)):
                # Ray itself tries for minutes
                socket.create_connection((found[1], int(found[2])), CONNECT_S).close()
            ray.init(address=address, logging_level=logging.WARNING)
        except (OSError, RayError, RuntimeError, ValueError) as error:
            raise EngineError(
                f"--ray-address: got {address or 'nothing'}; expected a Ray cluster ({error}). "
                "Start one with `ray start --head`."
            ) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep this process's handlers of signals: Ray sets its own, engine processes ignore them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    number = signal.SIGTERM
    handler = signal.getsignal(number)
    try:
        yield
    finally:
        signal.signal(number, handler)
