"""`/tokenize`, `/detokenize` and `/tokenizer_info`: the model's tokenizer over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from builtin_plugins.model_sources.api import read_settings_object
from builtin_plugins.routes.common.body import MAX_CONTEXTS, ParsedBody, client_name, read_request
from builtin_plugins.routes.common.custom_tools import as_functions
from builtin_plugins.routes.common.media_parts import read_media
from builtin_plugins.routes.common.requests import choose_model
from builtin_plugins.routes.common.schema import body_schema
from builtin_plugins.routes.common.streams import while_connected
from core.api import EngineConfig, InvalidRequest, ModelError
from core.api.serving import ServedEngine, Tokenizer


class TokenizeFields(msgspec.Struct, kw_only=True):
    """Body of `/tokenize`: a prompt or messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """Default: true for a prompt, false for messages: chat templates write them."""
    return_token_strs: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    tools: list[dict[str, Any]] = []
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = {}


class DetokenizeFields(msgspec.Struct, kw_only=True):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[int]


class TokenizeRoutes:
    """The model's tokenizer over HTTP."""

    def __init__(self, engine: ServedEngine, config: EngineConfig) -> None:
        self._engine = engine
        self._strict = bool(config.options.get("strict_fields"))
        self._serves_info = bool(config.options.get("enable_tokenizer_info_endpoint"))
        self._trusts_templates = bool(config.options.get("trust_request_chat_template"))
        self._folder = config.model.tokenizer or engine.source.path

    def routes(self) -> Sequence[Route]:
        """Return the routes."""
        info = Route("/tokenizer_info", self._info, methods=["GET"])
        return [
            Route("/tokenize", self._tokenize, methods=["POST"]),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            *([info] if self._serves_info else []),
        ]

    def bodies(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the JSON schema of each path's body."""
        structs: dict[str, type[msgspec.Struct]] = {
            "/tokenize": TokenizeFields,
            "/detokenize": DetokenizeFields,
        }
        found = {path: body_schema(struct, strict=self._strict) for path, struct in structs.items()}
        token = {"type": "integer", "minimum": 0, "maximum": self._engine.vocab_size - 1}
        found["/detokenize"]["properties"]["tokens"] = {"type": "array", "items": token}
        return found

    async def _tokenize(self, request: Request) -> Response:
        parsed = await read_request(request, TokenizeFields, strict=self._strict)
        fields = parsed.fields
        tokenizer = await self._check(fields.model)
        if (fields.prompt is None) == (fields.messages is None):
            raise InvalidRequest("prompt", "give either a prompt or messages.")
        ids = await while_connected(request, self._ids(fields, client_name(request)))
        answer: dict[str, Any] = {
            "count": len(ids),
            "max_model_len": self._engine.max_model_len,
            "tokens": ids,
        }
        if fields.return_token_strs:
            spell = tokenizer.token_text
            answer["token_strs"] = await asyncio.to_thread(lambda: [spell(token) for token in ids])
        return _answer(answer, parsed)

    async def _ids(self, fields: TokenizeFields, client: str) -> list[int]:
        special = fields.add_special_tokens
        if fields.prompt is not None:
            ids: list[int] = await self._engine.tokenize(
                fields.prompt, special is not False, client=client
            )
            return ids
        if fields.chat_template is not None and not self._trusts_templates:
            raise InvalidRequest(
                "chat_template",
                "is not taken from requests; --trust-request-chat-template allows it.",
            )
        add_generation_prompt = fields.add_generation_prompt
        if add_generation_prompt is None:
            add_generation_prompt = not fields.continue_final_message
        media = read_media(self._engine, fields.messages or [])
        if media.sources:
            raise InvalidRequest(
                media.sources[0].field, "got an image; expected text to tokenize. Remove it."
            )
        _, ids = await self._engine.render_chat(
            media.messages,
            client=client,
            add_special_tokens=bool(special),
            tools=as_functions(fields.tools)[0] or None,
            chat_template=fields.chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=fields.continue_final_message,
            template_kwargs=fields.chat_template_kwargs,
        )
        return ids

    async def _detokenize(self, request: Request) -> Response:
        maximum = MAX_CONTEXTS * self._engine.max_model_len
        parsed = await read_request(
            request, DetokenizeFields, strict=self._strict, num_tokens=maximum
        )
        tokenizer = await self._check(parsed.fields.model)
        vocab_size = self._engine.vocab_size
        if len(parsed.fields.tokens) > maximum:
            raise InvalidRequest(
                "tokens",
                f"holds {len(parsed.fields.tokens)} tokens, at most {maximum} are allowed.",
            )
        tokens = parsed.fields.tokens
        for token in (min(tokens, default=0), max(tokens, default=0)):
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    "tokens", f"token id {token} is outside the vocabulary of {vocab_size}."
                )
        text = await asyncio.to_thread(tokenizer.decode, tokens)
        return _answer({"prompt": text}, parsed)

    async def _info(self, request: Request) -> Response:
        """Return the contents of the tokenizer_config.json, and the chat template in use."""
        tokenizer = await self._check(None)
        settings = await asyncio.to_thread(_settings, self._folder)
        info = {
            "tokenizer_class": type(tokenizer).__name__,
            **settings,
            "vocab_size": tokenizer.vocab_size,
        }
        return Response(
            msgspec.json.encode({**info, "chat_template": tokenizer.chat_template}),
            media_type="application/json",
        )

    async def _check(self, model: str | None) -> Tokenizer:
        """Return the tokenizer. Raises a 404 without one, and for a model that is not served."""
        tokenizer = self._engine.tokenizer
        if tokenizer is None:
            raise HTTPException(
                404, "this engine runs without a tokenizer (--skip-tokenizer-init)."
            )
        await choose_model(self._engine, model)
        return tokenizer


def _answer(value: dict[str, Any], parsed: ParsedBody[Any]) -> Response:
    return Response(
        msgspec.json.encode(value), media_type="application/json", headers=parsed.headers
    )


def _settings(folder: str | None) -> dict[str, Any]:
    """Return the contents of a folder's tokenizer_config.json; empty if there is none."""
    path = Path(folder or "", "tokenizer_config.json")
    try:
        return read_settings_object(path)
    except ModelError:
        return {}
