"""Hooks that this plugin adds, for those who know where adapters are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from core.api import hookspec

if TYPE_CHECKING:
    from core.api import EngineConfig
    from core.familiar.adapters import LoRARequest


class LoRAResolver(Protocol):
    """Finds adapters that nobody has named: asked for each unknown model name that a request comes
    with.
    """

    name: str

    async def resolve_lora(self, base_model_name: str, lora_name: str) -> LoRARequest | None:
        """Return the adapter, its files in a local folder by now, or None for a name that is not
        its own.

        `lora_name` comes from whoever sends requests: it must lead nowhere but to adapters. Raises
        what says why one that is its own cannot be had; the client is told. The request's id does
        not matter, it gets one of its own.
        """


@hookspec
def engine_find_adapter(path: str) -> str | None:
    """Return the folder of an adapter's path such as `demo:pirate`; None if it is not yours.

    The first answer counts.
    """
    raise NotImplementedError


@hookspec
def engine_lora_resolvers(config: EngineConfig) -> Sequence[Any]:
    """Resolvers (`LoRAResolver`) that the configuration switches on.

    They are asked in the order of plugins' names.
    """
    raise NotImplementedError
