"""Route group of the Responses API: paths and body schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from starlette.routing import BaseRoute, Route, WebSocketRoute

from builtin_plugins.routes.common.event_runs import EventRuns
from builtin_plugins.routes.common.output_formats import OutputFormats
from builtin_plugins.routes.common.pipeline import ChatPipeline
from builtin_plugins.routes.common.run_ledger import RunLedger
from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.responses.compaction import CompactFields, Compaction
from builtin_plugins.routes.responses.databases import open_database
from builtin_plugins.routes.responses.fields import OTHERS, InputFields, ResponsesFields
from builtin_plugins.routes.responses.responses import Responses
from builtin_plugins.routes.responses.served_tools import ToolServers, open_tool_servers
from builtin_plugins.routes.responses.store import ResponseStore
from builtin_plugins.routes.responses.stored import MAX_PAGE_ITEMS, StoredResponses
from builtin_plugins.routes.responses.websocket import ResponseSocket
from core.api import EngineConfig
from core.api.serving import ServedEngine

_ONE: Final = "/v1/responses/{response_id}"
KEYLESS_SHARES: Final = 4
"""Number of shares of the store on a server without API keys."""


class ResponsesRoutes:
    """OpenAI's Responses API for one engine."""

    queries: Final[Mapping[str, Any]] = {
        f"GET {_ONE}": {
            "stream": {"type": "boolean", "default": False},
            "starting_after": {"type": "integer", "minimum": -1, "maximum": 2**31},
        },
        f"GET {_ONE}/input_items": {
            "order": {"enum": ["asc", "desc"], "default": "desc"},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE_ITEMS, "default": 20},
            "after": {"type": "string"},
        },
    }

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        options = config.options
        self._engine = engine
        self._strict = bool(options.get("strict_fields"))
        max_bytes = options.get("responses_store_bytes", 64 * 1024 * 1024)
        owner_bytes = options.get("responses_store_owner_bytes")
        if owner_bytes is None:
            owner_bytes = max_bytes // (len(options.get("api_key") or ()) or KEYLESS_SHARES)
        store = ResponseStore(open_database(config, engine.registry), max_bytes, owner_bytes)
        runs = EventRuns.shared(engine)
        self._stored = StoredResponses(store, runs)
        self._responses = Responses(
            engine,
            ChatPipeline(engine, OutputFormats.shared(engine, options)),
            store,
            runs,
            self._stored,
            strict=self._strict,
            cached_details=bool(options.get("enable_prompt_tokens_details")),
            image_placeholder=options.get("responses_image_placeholder"),
            resume_s=options.get("stream_resume_timeout") or 0.0,
            ledger=RunLedger.shared(engine),
            tool_servers=ToolServers(open_tool_servers(config, engine.registry)),
        )
        self._socket = ResponseSocket(self._responses, options.get("allowed_origins") or ())
        self._compaction = Compaction(engine, self._responses, strict=self._strict)

    async def started(self) -> None:
        """Continue the answers of an API process that has died."""
        await self._responses.restore()

    def routes(self) -> Sequence[BaseRoute]:
        """Return the routes."""
        return [
            WebSocketRoute("/v1/responses", self._socket.serve),
            Route("/v1/responses", self._responses.create, methods=["POST"]),
            Route("/v1/responses/input_tokens", self._responses.count, methods=["POST"]),
            Route("/v1/responses/compact", self._compaction.create, methods=["POST"]),
            Route(_ONE, self._stored.retrieve, methods=["GET"]),
            Route(_ONE, self._stored.delete, methods=["DELETE"]),
            Route(f"{_ONE}/cancel", self._stored.cancel, methods=["POST"]),
            Route(f"{_ONE}/input_items", self._stored.input_items, methods=["GET"]),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        others = OTHERS.schemas(self._engine.fields)
        structs: dict[str, Any] = {
            "/v1/responses": ResponsesFields,
            "/v1/responses/input_tokens": InputFields,
            "/v1/responses/compact": CompactFields,
        }
        return {
            path: body_schema(struct, others, strict=self._strict)
            for path, struct in structs.items()
        }
