"""Route group that loads and unloads adapters, with vLLM's answers."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from fastapi import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from builtin_plugins.routes.common.body import read_request
from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.variants import VariantSource, variant_sources
from core.api import EngineConfig, InvalidRequest
from core.api.serving import ServedEngine

log = logging.getLogger(__name__)
LOAD: Final = "/v1/load_lora_adapter"
UNLOAD: Final = "/v1/unload_lora_adapter"


class LoadFields(msgspec.Struct, kw_only=True):
    """Body of `/v1/load_lora_adapter`."""

    lora_name: str
    lora_path: str
    base_model_name: str | None = None
    load_inplace: bool = False
    """Whether to replace a loaded adapter of the same name."""


class UnloadFields(msgspec.Struct, kw_only=True):
    """Body of `/v1/unload_lora_adapter`."""

    lora_name: str = ""
    lora_int_id: int | None = None
    """Id of the adapter, instead of its name or in addition to it."""


class AdapterRoutes:
    """Adapter routes of one engine."""

    switch: Final = "enable_runtime_lora"

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._on = bool(config.options.get(self.switch))
        self._strict = bool(config.options.get("strict_fields"))
        if self._on and not config.options.get("lora_roots"):
            log.warning(
                "clients may load adapters from any folder of this machine; name those allowed: "
                "--lora-roots DIR"
            )

    def routes(self) -> Sequence[Route]:
        """Return the routes; none without the switch."""
        if not self._on:
            return []
        return [
            Route(LOAD, self._load, methods=["POST"]),
            Route(UNLOAD, self._unload, methods=["POST"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        structs: dict[str, type[msgspec.Struct]] = {LOAD: LoadFields, UNLOAD: UnloadFields}
        return {path: body_schema(struct, strict=self._strict) for path, struct in structs.items()}

    async def _load(self, request: Request) -> PlainTextResponse:
        """Load an adapter from the server's disk."""
        parsed = await read_request(request, LoadFields, strict=self._strict)
        fields = parsed.fields
        for name in ("lora_name", "lora_path"):
            if not getattr(fields, name).strip():
                raise InvalidRequest(name, "must not be empty.")
        name = fields.lora_name
        path = fields.lora_path
        await self._source().load(
            self._engine.call, name, path, fields.base_model_name, again=fields.load_inplace
        )
        return PlainTextResponse(
            f"Success: LoRA adapter '{name}' added successfully", headers=parsed.headers
        )

    async def _unload(self, request: Request) -> PlainTextResponse:
        """Unload an adapter."""
        parsed = await read_request(request, UnloadFields, strict=self._strict)
        name = self._name(parsed.fields)
        if not await self._source().unload(self._engine.call, name):
            message = f"The lora adapter {name[:200]!r} cannot be found."
            raise HTTPException(
                404, {"message": message, "param": "lora_name", "code": "model_not_found"}
            )
        return PlainTextResponse(
            f"Success: LoRA adapter '{name}' removed successfully", headers=parsed.headers
        )

    def _name(self, fields: UnloadFields) -> str:
        """Return the adapter's name. Raises `InvalidRequest` for an id that it does not have."""
        name = fields.lora_name
        if fields.lora_int_id is None:
            if not name:
                raise InvalidRequest("lora_name", "is missing; give it, or lora_int_id.")
            return name
        ids = {
            variant.name: variant.keywords["lora_request"].lora_int_id
            for variant in self._source().variants()
        }
        found = next((each for each, number in ids.items() if number == fields.lora_int_id), "")
        if name and found != name:
            raise InvalidRequest(
                "lora_int_id", f"got {fields.lora_int_id}; expected that of {name!r:.200}."
            )
        if not found:
            message = f"The lora adapter with id {fields.lora_int_id} cannot be found."
            raise HTTPException(
                404, {"message": message, "param": "lora_int_id", "code": "model_not_found"}
            )
        return found

    def _source(self) -> VariantSource:
        sources = variant_sources(self._engine.registry)
        if not sources:
            raise HTTPException(
                404,
                {
                    "message": "LoRA is off; start the server with --enable-lora.",
                    "code": "not_served",
                },
            )
        return sources[0]
