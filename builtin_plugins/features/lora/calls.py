"""What programs and routes ask of the other halves: to load an adapter, forget it, keep it in its
slot, and list them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from builtin_plugins.features.lora.edge import FIELD, Adapters
from builtin_plugins.features.lora.messages import Held, Wanted
from core.api import InvalidRequest
from core.contracts.variants import Call
from core.familiar.adapters import LoRARequest

POLL_S: Final = 0.02
"""Between two looks whether an adapter is loaded."""
_encode = msgspec.msgpack.Encoder().encode
_held = msgspec.json.Decoder(list[Held]).decode


async def loaded(call: Call, wanted: Wanted) -> None:
    """Have an adapter loaded, and wait for it. Raises `InvalidRequest` with what is wrong with it."""
    verb = "lora.load"
    data = _encode(wanted)
    while True:
        answer, *_ = await call(verb, data)
        found = next((held for held in _held(answer) if held.digest == wanted.digest.hex()), None)
        if found is not None and found.state == "ready":
            return
        if found is not None and found.state == "failed":
            raise InvalidRequest(FIELD, f"adapter {wanted.name!r:.100}: {found.error}")
        verb, data = ("lora.list", b"") if found is not None else ("lora.load", _encode(wanted))
        await asyncio.sleep(POLL_S)


async def unloaded(call: Call, wanted: Wanted) -> None:
    """Have an adapter forgotten once nobody computes with it."""
    await call("lora.unload", _encode(wanted))


class Methods:
    """`add_lora`, `remove_lora`, `pin_lora` and `list_loras`, as `LLM` has them."""

    def __init__(self, adapters: Adapters) -> None:
        self._adapters = adapters

    def by_name(self) -> dict[str, Callable[..., Any]]:
        """Return the methods of `LLM`."""
        return {
            "add_lora": self.add,
            "remove_lora": self.remove,
            "pin_lora": self.pin,
            "list_loras": self.list,
        }

    def add(self, llm: Any, lora_request: LoRARequest) -> bool:
        """Load an adapter before anybody asks for it.

        Raises `InvalidRequest` for a bad one, and while requests are open.
        """
        if llm.has_unfinished_requests():
            raise InvalidRequest(
                FIELD,
                "cannot be loaded by itself while requests are unfinished; add a request with it.",
            )

        async def load() -> None:
            wanted = await self._adapters.wanted(lora_request)

            async def call(verb: str, data: bytes) -> list[bytes]:
                llm.core.step()  # what was told by now is heard, what is to be forgotten is sent
                answers: list[bytes] = llm.core.call(verb, data)
                return answers

            await loaded(call, wanted)

        asyncio.run(load())
        return True

    def remove(self, llm: Any, lora_id: int) -> bool:
        """Forget an adapter by its id; False for an unknown one.

        Requests that have it keep it to their end.
        """
        name = self._name(lora_id)
        known = None if name is None else self._adapters.remove(name)
        if known is not None and known.wanted is not None:
            llm.core.call("lora.unload", _encode(known.wanted))
        return known is not None

    def pin(self, llm: Any, lora_id: int) -> bool:
        """Keep an adapter that is loaded in its slot until it is removed.

        Raises `InvalidRequest` where that cannot be.
        """
        name = self._name(lora_id)
        known = None if name is None else self._adapters.known[name]
        if known is None or known.wanted is None:
            raise InvalidRequest(
                "lora_id", f"{lora_id} is no adapter that is loaded; add_lora it first."
            )
        llm.core.call("lora.pin", _encode(known.wanted))
        return True

    def list(self, llm: Any) -> set[int]:
        """Return the ids of the adapters that are in memory."""
        answer, *_ = llm.core.call("lora.list", b"")
        there = {held.digest for held in _held(answer) if held.state == "ready"}
        known = self._adapters.known.values()
        return {
            each.request.lora_int_id
            for each in known
            if each.wanted and each.wanted.digest.hex() in there
        }

    def _name(self, lora_id: int) -> str | None:
        named = self._adapters.known.items()
        return next((name for name, known in named if known.request.lora_int_id == lora_id), None)
