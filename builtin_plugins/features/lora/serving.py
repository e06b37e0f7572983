"""Adapters of one frontend: variants of the model by name, and the adapter methods of `LLM`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from builtin_plugins.features.lora.adapter_file import BadAdapter
from builtin_plugins.features.lora.messages import AdapterRef, AdapterStatus
from builtin_plugins.features.lora.registry import FIELD, AdapterRegistry, KnownAdapter
from builtin_plugins.features.lora.settings import Settings
from builtin_plugins.routes.api import Call, Variant, require_all, variant_sources
from core.api import (
    ConfigError,
    EngineConfig,
    EngineError,
    InvalidRequest,
    LoRARequest,
    Registry,
)
from core.api.execution import CallAnswer
from core.api.features import llm_methods


def adapters_of(config: EngineConfig, registry: Registry) -> AdapterRegistry:
    """Return the adapters of this process, those of `--lora-modules` included.

    Raises `ConfigError` for a bad one.
    """
    made: AdapterRegistry = registry.shared("lora adapters", lambda: _create(config, registry))
    return made


def _create(config: EngineConfig, registry: Registry) -> AdapterRegistry:
    settings = Settings.of(config)
    assert settings is not None, "it is on"

    def locate(path: str) -> str:
        answers = (answer for _, answer in registry.call_hook("engine_find_adapter", path=path))
        return next((answer for answer in answers if answer is not None), path)

    adapters = AdapterRegistry(settings, locate)
    for module in settings.modules:
        if module.name in served_names(config):
            raise ConfigError(
                f"--lora-modules: got {module.name}, the name of the model. Give the adapter "
                "another name."
            )
        try:
            known = adapters.describe(module.name, module.path, module.base_model_name)
            adapters.known[known.name] = adapters.read(known)
        except BadAdapter as error:
            raise ConfigError(f"--lora-modules: {module.name} ({module.path}): {error}") from error
    variant_sources(registry).append(Served(config, registry, adapters))
    llm_methods(registry).update(LLMMethods(adapters).by_name())
    return adapters


class Served:
    """Adapters as variants of the model: listed, chosen by name, and resolved on demand."""

    def __init__(self, config: EngineConfig, registry: Registry, adapters: AdapterRegistry) -> None:
        self._config = config
        self._registry = registry
        self._adapters = adapters
        self._resolving: dict[str, asyncio.Task[KnownAdapter | None]] = {}

    def variants(self) -> Sequence[Variant]:
        """Return the variants listed with the model."""
        return [_variant(known) for known in self._adapters.listed()]

    async def find(self, name: str) -> Variant | None:
        """Return the adapter of this name; resolvers look up an unknown one.

        Raises `InvalidRequest`.
        """
        known = self._adapters.known.get(name)
        if known is None:
            task = self._resolving.get(name)
            if task is None:  # concurrent requests share one lookup
                task = self._resolving[name] = asyncio.create_task(self._resolve(name))
                task.add_done_callback(lambda _: self._resolving.pop(name, None))
            known = await asyncio.shield(task)
        return None if known is None else _variant(known)

    async def load(
        self, call: Call, name: str, path: str, parent: str | None, *, again: bool
    ) -> None:
        """Serve an adapter from now on.

        Raises `InvalidRequest` for a bad one, and changes nothing then.
        """
        adapters = self._adapters
        before = adapters.known.get(name)
        if before is not None and not again:
            raise InvalidRequest("lora_name", f"The lora adapter {name!r} has already been loaded.")
        if name in served_names(self._config):
            raise InvalidRequest(
                "lora_name",
                (f"got {name!r:.100}, the name of the model. Give the adapter another name."),
            )
        try:
            adapters.check_root(path)
            known = await asyncio.to_thread(adapters.read, adapters.describe(name, path, parent))
        except BadAdapter as error:
            raise InvalidRequest("lora_path", f"adapter {name!r:.100}: {error}") from error
        assert known.ref is not None, "it was read"
        await load_adapter(call, known.ref)
        adapters.known[name] = known
        if before is not None and before.ref is not None and before.ref.digest != known.ref.digest:
            await unload_adapter(call, before.ref)

    async def unload(self, call: Call, name: str) -> bool:
        """Stop serving an adapter; running requests finish with it. False for an unknown name."""
        known = self._adapters.remove(name)
        if known is not None and known.ref is not None:
            await unload_adapter(call, known.ref)
        return known is not None

    async def _resolve(self, name: str) -> KnownAdapter | None:
        base = self._config.model.model
        for ref, resolvers in self._registry.call_hook(
            "engine_lora_resolvers", config=self._config
        ):
            for resolver in resolvers or ():
                try:
                    found = await resolver.resolve_lora(base, name)
                    if found is None:
                        continue
                    return await self._register(name, found)
                except BadAdapter as error:
                    raise InvalidRequest("model", f"adapter {name!r:.100}: {error}") from error
                except EngineError:
                    raise
                except Exception as error:
                    raise InvalidRequest(
                        "model", f"resolver {ref.name} failed for {name!r:.100}: {error}"
                    ) from error
        return None

    async def _register(self, name: str, found: Any) -> KnownAdapter:
        adapters = self._adapters
        known = adapters.describe(name, found.lora_path, getattr(found, "base_model_name", None))
        adapters.known[name] = await asyncio.to_thread(adapters.read, known)
        return adapters.known[name]


def served_names(config: EngineConfig) -> Sequence[str]:
    """Return the names of the model itself."""
    return config.model.served_model_name or [config.model.model]


def _variant(known: KnownAdapter) -> Variant:
    request = known.request
    requested = LoRARequest(
        request.lora_name, request.lora_int_id, request.lora_path, request.base_model_name
    )
    return Variant(known.name, str(known.folder), known.base_model, {FIELD: requested})


POLL_S: Final = 0.02
"""Seconds between polls for the end of a load."""
_encode = msgspec.msgpack.Encoder().encode
_decode_statuses = msgspec.json.Decoder(list[AdapterStatus]).decode


async def load_adapter(call: Call, ref: AdapterRef) -> None:
    """Load an adapter and wait for it. Raises `InvalidRequest` with the reason of a failure."""
    verb = "lora.load"
    data = _encode(ref)
    while True:
        answers = require_all(await call(verb, data))
        found = [
            held
            for answer in answers
            for held in _decode_statuses(answer.scheduler or b"[]")
            if held.digest == ref.digest.hex()
        ]
        if any(held.state == "failed" for held in found):
            error = next(held.error for held in found if held.state == "failed")
            raise InvalidRequest(FIELD, f"adapter {ref.name!r:.100}: {error}")
        everywhere = len(found) == len(answers)
        if everywhere and all(held.state == "ready" for held in found):
            return
        verb, data = ("lora.list", b"") if everywhere else ("lora.load", _encode(ref))
        await asyncio.sleep(POLL_S)


async def unload_adapter(call: Call, ref: AdapterRef) -> None:
    """Unload an adapter once no request uses it. A dead engine's successor has none."""
    answers = await call("lora.unload", _encode(ref))
    require_all([answer for answer in answers if not answer.died])


class LLMMethods:
    """`add_lora`, `remove_lora`, `pin_lora` and `list_loras` of `LLM`."""

    def __init__(self, adapters: AdapterRegistry) -> None:
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
        """Load an adapter before its first request.

        Raises `InvalidRequest` for a bad one, and while requests are open.
        """
        if llm.has_unfinished_requests():
            raise InvalidRequest(
                FIELD,
                "cannot be loaded while requests are unfinished. Add a request with it instead.",
            )

        async def load() -> None:
            ref = await self._adapters.ref(lora_request)

            async def call(verb: str, data: bytes) -> list[CallAnswer]:
                llm.core.step()  # deliver pending messages
                return [llm.core.call(verb, data)]

            await load_adapter(call, ref)

        asyncio.run(load())
        return True

    def remove(self, llm: Any, lora_id: int) -> bool:
        """Unload an adapter by id; False for an unknown id. Running requests finish with it."""
        name = self._name(lora_id)
        known = None if name is None else self._adapters.remove(name)
        if known is not None and known.ref is not None:
            llm.core.call("lora.unload", _encode(known.ref))
        return known is not None

    def pin(self, llm: Any, lora_id: int) -> bool:
        """Pin a loaded adapter in its slot until it is removed.

        Raises `InvalidRequest` if that is impossible.
        """
        name = self._name(lora_id)
        known = None if name is None else self._adapters.known[name]
        if known is None or known.ref is None:
            raise InvalidRequest(
                "lora_id",
                (f"got {lora_id}; expected the id of a loaded adapter. Call add_lora first."),
            )
        llm.core.call("lora.pin", _encode(known.ref))
        return True

    def list(self, llm: Any) -> set[int]:
        """Return the ids of the adapters in memory."""
        answer = llm.core.call("lora.list", b"").scheduler
        statuses = _decode_statuses(answer or b"[]")
        there = {held.digest for held in statuses if held.state == "ready"}
        known = self._adapters.known.values()
        return {
            each.request.lora_int_id
            for each in known
            if each.ref and each.ref.digest.hex() in there
        }

    def _name(self, lora_id: int) -> str | None:
        named = self._adapters.known.items()
        return next((name for name, known in named if known.request.lora_int_id == lora_id), None)
