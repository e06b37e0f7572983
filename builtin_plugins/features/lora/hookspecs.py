"""Hooks of this plugin: locate and resolve adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from core.api import hookspec

if TYPE_CHECKING:
    from core.api import EngineConfig, LoRARequest


class LoRAResolver(Protocol):
    """Resolves adapters that are not configured; called for each unknown model name."""

    name: str

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the adapter with its files in a local folder, or None for an unknown name.

        `lora_name` is client input: it must resolve to adapters only. An exception for an adapter
        that cannot be served is reported to the client. The request's id is replaced.
        """


@hookspec
def engine_find_adapter(path: str) -> str | None:
    """Return the folder of an adapter path such as `demo:pirate`, or None.

    The first answer counts.
    """
    raise NotImplementedError


@hookspec
def engine_lora_resolvers(config: EngineConfig) -> Sequence[Any]:
    """Return the configured resolvers (`LoRAResolver`).

    They are called in the order of plugin names.
    """
    raise NotImplementedError
