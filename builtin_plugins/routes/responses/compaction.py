"""`POST /v1/responses/compact`: the summary of a conversation, as an item that continues it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import ParsedBody
from builtin_plugins.routes.common.conversation import encode_reasoning
from builtin_plugins.routes.common.fields import EngineFields, ShortString
from builtin_plugins.routes.common.media_parts import served_modalities
from builtin_plugins.routes.responses.fields import OTHERS, Item, ResponsesFields
from builtin_plugins.routes.responses.reading import new_id
from builtin_plugins.routes.responses.responses import Responses
from builtin_plugins.routes.responses.stored import as_json
from core.api import InvalidRequest
from core.api.serving import ServedEngine

REQUEST: Final = (
    "Summarize this conversation for an assistant that continues it without having read it: the "
    "user's goals and constraints, decisions, facts and results so far, and what remains to be "
    "done. Write the summary only."
)
"""The last user message of a compaction."""
MAX_SUMMARY_TOKENS: Final = 4096


class CompactFields(EngineFields, kw_only=True):
    """Body of `/v1/responses/compact`."""

    model: str
    input: str | list[Item] = []
    previous_response_id: ShortString | None = None
    instructions: str | None = None
    prompt_cache_key: ShortString | None = None
    max_output_tokens: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None


class Compaction:
    """Endpoint `/v1/responses/compact`."""

    def __init__(self, engine: ServedEngine, responses: Responses, *, strict: bool) -> None:
        self._engine = engine
        self._responses = responses
        self._strict = strict

    async def create(self, request: Request) -> Response:
        """Return the user's messages of the input, and the summary of the whole conversation."""
        parsed = await OTHERS.read(
            request,
            CompactFields,
            self._engine.fields,
            strict=self._strict,
            modalities=served_modalities(self._engine),
        )
        fields = parsed.fields
        items = fields.input
        if isinstance(items, str):
            items = [Item(role="user", content=items)]
        if not items and not fields.previous_response_id:
            raise InvalidRequest("input", "is empty; send the items to compact.")
        summarized = ResponsesFields(
            model=fields.model,
            input=[*items, Item(role="user", content=REQUEST)],
            previous_response_id=fields.previous_response_id,
            instructions=fields.instructions,
            max_output_tokens=fields.max_output_tokens or self._max_tokens(),
            truncation="auto",
            store=False,
            priority=fields.priority,
            cache_salt=fields.cache_salt,
            vllm_xargs=fields.vllm_xargs,
        )
        response, own = await self._responses.complete(
            request, ParsedBody(summarized, parsed.others, parsed.ignored)
        )
        compacted = {
            "id": response["id"],
            "object": "response.compaction",
            "created_at": response["created_at"],
            "output": [
                *(item for item in own[:-1] if item.get("role") == "user"),
                _item(response, fields),
            ],
            "usage": response["usage"],
        }
        return as_json(compacted, parsed.headers)

    def _max_tokens(self) -> int:
        return min(MAX_SUMMARY_TOKENS, max(1, self._engine.max_model_len // 4))


def _item(response: dict[str, Any], fields: CompactFields) -> dict[str, Any]:
    """Return the compaction item with the text of a response; its thoughts if it has no other.

    Raises `InvalidRequest` if there is neither: an empty summary would lose the conversation, and
    another try gives the same.
    """
    parts = [
        (item["type"], part["text"])
        for item in response["output"]
        for part in item.get("content", ())
    ]
    texts = [text for kind, text in parts if kind == "message"] or [text for _, text in parts]
    summary = "\n".join(texts).strip()
    if not summary and response["status"] == "incomplete" and fields.max_output_tokens:
        raise InvalidRequest(
            "max_output_tokens",
            f"got {fields.max_output_tokens}; expected enough tokens for a summary. Raise it.",
            "no_summary",
        )
    if not summary:
        raise InvalidRequest(
            "input",
            "got a conversation to which the model wrote no summary; expected one that it "
            "summarizes. Continue with its items, or send other instructions.",
            "no_summary",
        )
    return {
        "id": new_id("compaction"),
        "type": "compaction",
        "encrypted_content": encode_reasoning(summary),
    }
