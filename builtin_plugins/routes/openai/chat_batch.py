"""`POST /v1/chat/completions/batch`: several conversations with the same settings, one choice each.

The fields are those of chat completions, with a list of conversations in `messages`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from builtin_plugins.routes.common.body import read_json, release_body
from builtin_plugins.routes.common.concurrency import gather_bounded
from builtin_plugins.routes.common.streams import while_connected
from builtin_plugins.routes.common.sub_requests import sub_request
from builtin_plugins.routes.openai.chat import ChatCompletions
from builtin_plugins.routes.openai.fields import MAX_PROMPTS
from core.api import InvalidRequest

FIELD: Final = "messages"
_EMPTY: Final = ("stream", "stream_options", "tools", "use_beam_search", "echo")
"""Fields that belong to single conversations."""


class ChatBatch:
    """Endpoint `/v1/chat/completions/batch`."""

    def __init__(self, chat: ChatCompletions) -> None:
        self._chat = chat

    async def create(self, request: Request) -> Response:
        """Answer several conversations; one choice each, in order."""
        fields = await read_json(request)
        conversations = _conversations(fields)
        work = (
            self._answer(request, {**fields, FIELD: conversation}, i)
            for i, conversation in enumerate(conversations)
        )
        answers = await while_connected(request, gather_bounded(work))
        release_body(request)
        headers = {
            name: value
            for name, value in answers[0].headers.items()
            if name.lower().startswith("x-")
        }
        body = msgspec.json.encode(_joined([msgspec.json.decode(each.body) for each in answers]))
        return Response(body, media_type="application/json", headers=headers)

    async def _answer(self, request: Request, fields: dict[str, Any], index: int) -> Response:
        """Return the answer to one conversation. An error names it."""
        try:
            answer: Response = await self._chat(sub_request(request, fields))
        except InvalidRequest as error:
            if error.field.startswith(FIELD):
                rest = error.field.removeprefix(FIELD)
                raise error.renamed(f"{FIELD}[{index}]{rest}") from None
            raise
        return answer


def _conversations(fields: Any) -> list[Any]:
    """Return the conversations. Raises `InvalidRequest`."""
    if not isinstance(fields, dict):
        raise InvalidRequest("body", "must be an object.")
    for name in _EMPTY:
        if fields.get(name):
            raise InvalidRequest(name, "is not served for a batch; send single conversations.")
    if fields.get("n") not in (None, 1):
        raise InvalidRequest("n", f"got {fields['n']!r:.50}; expected 1, one choice each.")
    found = fields.get(FIELD)
    if not isinstance(found, list) or not found or not all(isinstance(x, list) for x in found):
        raise InvalidRequest(FIELD, "must be a list of conversations, each a list of messages.")
    if len(found) > MAX_PROMPTS:
        raise InvalidRequest(
            FIELD, f"holds {len(found)} conversations, at most {MAX_PROMPTS} are allowed."
        )
    return found


def _joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one answer with the choices of all, and the sum of their usage."""
    choices = [{**answer["choices"][0], "index": index} for index, answer in enumerate(answers)]
    usage: Counter[str] = Counter()
    for answer in answers:
        usage.update(
            {name: count for name, count in answer["usage"].items() if isinstance(count, int)}
        )
    return {**answers[0], "choices": choices, "usage": dict(usage)}
