"""Admission half: has items processed, and places them in the prompt."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from builtin_plugins.features.multimodal.messages import (
    NAME,
    ItemRun,
    Prepare,
    Prepared,
    RequestItem,
    RequestItems,
)
from builtin_plugins.features.multimodal.request_items import (
    DATA,
    UUIDS,
    LocalModel,
    Messages,
    RequestItemReader,
)
from builtin_plugins.features.multimodal.settings import Settings
from builtin_plugins.features.multimodal.state_views import offsets_of
from builtin_plugins.features.multimodal.store import TensorStore
from builtin_plugins.routes.api import media_counters
from core.api import EngineConfig, InvalidRequest, QueueFull, Registry, SamplingParams
from core.api.execution import Span
from core.api.features import AdmissionContext, PendingRequest, Unsupported
from core.api.serving import Prompt, RenderedText
from core.model_spec.tower import TowerFacts

if TYPE_CHECKING:
    from builtin_plugins.features.multimodal.processor_host import ProcessorHost

KWARGS: Final = "mm_processor_kwargs"
FIELDS: Final = (DATA, UUIDS, KWARGS)


class MultimodalAdmission:
    """Reads `multi_modal_data`, `multi_modal_uuids` and `mm_processor_kwargs`."""

    whole_prompt = False
    keywords: tuple[str, ...] = ()
    prompt_keys: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        self._config = config
        self._registry = registry
        self._settings = Settings.from_config(config)
        self._host: ProcessorHost | None = None
        self._facts: TowerFacts | None = None

    def attach(self, context: AdmissionContext) -> None:
        """Read the tower's facts, and start the input processor if images are allowed."""
        facts = context.facts.get(NAME)
        self._context = context
        self.unsupported = dict.fromkeys(
            FIELDS, Unsupported("is for models that read images, and this one reads text only")
        )
        if facts is None:
            return
        self._facts = msgspec.msgpack.decode(facts, type=TowerFacts)
        self.whole_prompt = self._facts.whole_prompt
        self._tokens = frozenset().union(*map(self._facts.tokens, self._facts.placeholders))
        self.keywords = self.prompt_keys = FIELDS
        if self._settings.trust_request_kwargs:
            self.fields = (KWARGS,)
        model = LocalModel(self._registry, [self._config.model.model])
        self._reader = RequestItemReader(self._facts, self._settings, model)
        media_counters(self._registry).append(self)
        if self._settings.max_images:
            self._start_processor()

    def _start_processor(self) -> None:
        # Imported lazily: it needs pyzmq, and text models do without.
        from builtin_plugins.features.multimodal.processor_host import ProcessorHost

        self._host = ProcessorHost(self._config, self._registry, self._settings.store_bytes)
        self._host.wait_until_ready()

    def close(self) -> None:
        """End the input processor."""
        if self._host is not None:
            self._host.close()

    def applies_to(self, request: PendingRequest) -> bool:
        """Return whether the request has items, or placeholders without items."""
        if self._facts is None:
            return False
        has_items = any(name in request.plugin_fields for name in FIELDS)
        return has_items or not self._tokens.isdisjoint(request.prompt_token_ids)

    async def prepare(self, request: PendingRequest) -> PendingRequest:
        """Return the request with its items' tokens in the prompt. Raises `InvalidRequest`."""
        given = request.plugin_fields
        kwargs = self._processor_kwargs(given.get(KWARGS))
        data = await self._reader.load(given.get(DATA) or {}, str(given.get("client", "")))
        items = self._reader.items(data, given.get(UUIDS) or {})
        if not items:
            self._locate(request.prompt_token_ids, ())
            return request
        assert self._host is not None
        holder = f"{request.request_id}-{secrets.token_hex(8)}".replace("/", "_")
        tenant = f"{given.get('client', '')}\0{request.cache_salt}"
        message = self._with_prompt(Prepare(0, items, kwargs, tenant, holder), request)
        # A message with large images takes milliseconds to encode.
        answer = await asyncio.wrap_future(await asyncio.to_thread(self._host.submit, message))
        try:
            if answer.is_full:
                raise QueueFull(f"{answer.error_field}: {answer.error}")
            if answer.error_field:
                raise InvalidRequest(answer.error_field, answer.error)
            prompt = await asyncio.to_thread(self._read, request, answer)
            return self._placed(request, prompt, answer, holder)
        except BaseException:
            TensorStore(self._host.folder).release(holder)
            raise

    def _with_prompt(self, message: Prepare, request: PendingRequest) -> Prepare:
        """Return the message with the prompt. Raises `InvalidRequest`."""
        assert self._facts is not None
        text = request.text
        given = request.prompt_token_ids if text is None else text.strip()
        if self._facts.whole_prompt:
            if given or len(message.items) > 1:
                raise InvalidRequest(
                    DATA,
                    f"got {len(message.items)} items{' and a text' if given else ''}; expected one "
                    "item and no text: this model embeds a text or an image. Send two requests.",
                )
            placeholders = list(self._facts.placeholders.values())
            return msgspec.structs.replace(message, token_ids=placeholders)
        if text is None:
            return msgspec.structs.replace(message, token_ids=request.prompt_token_ids)
        if isinstance(text, RenderedText):
            spans = list(text.control_spans)
            return msgspec.structs.replace(message, text=str(text), control_spans=spans)
        return msgspec.structs.replace(message, text=text)

    async def count(self, prompt: Mapping[str, Any], *, client: str, cache_salt: str) -> int:
        """Return the number of tokens of a prompt with items. Raises `InvalidRequest`."""
        request = PendingRequest(
            request_id="count",
            prompt_token_ids=prompt["prompt_token_ids"],
            sampling=SamplingParams(),
            plugin_fields={DATA: prompt[DATA], "client": client},
            text=prompt["prompt"],
            cache_salt=cache_salt,
        )
        counted = await self.prepare(request)
        items = msgspec.msgpack.decode(counted.features[NAME], type=RequestItems)
        TensorStore(items.folder).release(items.holder)
        return len(counted.prompt_token_ids)

    def read_messages(self, messages: Messages) -> tuple[Messages, dict[str, Any]]:
        """Return an offline conversation for the renderer, and its items as prompt keys."""
        return (messages, {}) if self._facts is None else self._reader.read_messages(messages)

    def _processor_kwargs(self, given: Any) -> dict[str, Any]:
        """Return the input processor's keywords of a request. Raises `InvalidRequest`."""
        if given is not None and not isinstance(given, Mapping):
            raise InvalidRequest(KWARGS, f"got {type(given).__name__}; expected a dict.")
        kwargs = {**self._settings.processor_kwargs, **(given or {})}
        try:
            json.dumps(kwargs)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(
                KWARGS, f"got {error}; expected values as in JSON. Correct it."
            ) from error
        return kwargs

    def _read(self, request: PendingRequest, answer: Prepared) -> Prompt:
        """Return the expanded prompt as tokens."""
        if answer.text is None:
            return Prompt(answer.token_ids)
        if isinstance(request.text, RenderedText):
            rendered = RenderedText(answer.text, answer.control_spans)
            return self._context.read(rendered, False, self._context.max_model_len)
        special = not answer.is_complete
        return self._context.read(answer.text, special, self._context.max_model_len)

    def _placed(
        self, request: PendingRequest, prompt: Prompt, answer: Prepared, holder: str
    ) -> PendingRequest:
        """Return the request with its items' spans and messages."""
        assert self._facts is not None
        assert self._host is not None
        counts = [(item.modality, item.num_tokens) for item in answer.items]
        runs = self._locate(prompt.token_ids, counts)
        states = self._facts.cross_positions
        items = [
            RequestItem(
                item.modality, item.content_hash, states or item.num_tokens, own, item.was_known
            )
            for item, own in zip(answer.items, runs, strict=True)
        ]
        longest = max((run.length for own in runs for run in own), default=0)
        if self._settings.whole_items and longest > self._settings.chunk_tokens:
            raise InvalidRequest(
                DATA,
                f"got an item of {longest} tokens that a step computes together; expected at most "
                f"{self._settings.chunk_tokens} (--max-num-batched-tokens, "
                "--long-prefill-token-threshold). Send a smaller one.",
            )
        spans = [
            Span(run.start, run.length, f"{item.modality}.{run.row}", item.content_hash)
            for item in items
            for run in item.runs
        ]
        look_ahead = self._look_ahead(items, len(prompt.token_ids))
        sees_all = self._facts.look_ahead == "all_items"
        at_start = bool(states) or self._facts.in_encoder
        message = RequestItems(self._host.folder, holder, items, look_ahead, sees_all, at_start)
        if sees_all or self._facts.look_ahead == "prompt":
            spans.append(joint_span(prompt.token_ids, message))
        self._check_units(message)
        if self._facts.in_encoder:
            spans = []  # the tokens become encoder input
        if states:
            request = replace(request, num_encoder_positions=self._num_positions(items))
            spans += _span_before(items)
        return replace(
            request,
            prompt_token_ids=prompt.token_ids,
            text=prompt.text,
            spans=(*request.spans, *sorted(spans)),
            features={**request.features, NAME: msgspec.msgpack.encode(message)},
        )

    def _num_positions(self, items: Sequence[RequestItem]) -> int:
        """Return the encoder positions of a request. Raises `InvalidRequest`."""
        assert self._facts is not None
        count = offsets_of(items, self._config.cache.block_size)[-1]
        limit = self._facts.max_cross_positions
        if count > limit:
            raise InvalidRequest(
                DATA,
                f"got {len(items)} items with {count} encoder states in all; expected at most "
                f"{limit}. Send fewer.",
            )
        return count

    def _look_ahead(self, items: Sequence[RequestItem], prompt_len: int) -> list[tuple[int, int]]:
        """Return the runs of tokens that see each other."""
        assert self._facts is not None
        if not self._facts.look_ahead:
            return []
        if self._facts.look_ahead == "prompt":
            return [(0, prompt_len)]
        if self._facts.look_ahead == "all_items":  # with the tokens between an item's runs
            own = [(item.runs[0], item.runs[-1]) for item in items]
            return sorted((first.start, last.start + last.length) for first, last in own)
        return sorted((run.start, run.start + run.length) for item in items for run in item.runs)

    def _check_units(self, message: RequestItems) -> None:
        """Raise `InvalidRequest` for tokens that see each other and do not fit a step."""
        longest = max((end - start for start, end in message.units()), default=0)
        budget = self._settings.chunk_tokens
        if longest > budget:
            raise InvalidRequest(
                DATA,
                f"got {longest} tokens that a step computes together; expected at most {budget} "
                "(--max-num-batched-tokens, --long-prefill-token-threshold). Send smaller items.",
            )

    def _locate(
        self, token_ids: Sequence[int], counts: Sequence[tuple[str, int]]
    ) -> list[list[ItemRun]]:
        """Return the runs of placeholder tokens of each item (modality, tokens), in order."""
        assert self._facts is not None
        found: list[list[ItemRun]] = [[] for _ in counts]
        for modality in self._facts.placeholders:
            tokens = self._facts.tokens(modality)
            positions = [at for at, each in enumerate(token_ids) if each in tokens]
            expected = sum(count for kind, count in counts if kind == modality)
            if len(positions) != expected:
                raise InvalidRequest(
                    "prompt",
                    f"got {len(positions)} placeholder tokens of {modality!r} for items with "
                    f"{expected}. Send an item for each placeholder.",
                )
            at = 0
            for index, (kind, count) in enumerate(counts):
                if kind == modality:
                    found[index] = _runs(positions[at : at + count])
                    at += count
        return found


def joint_span(token_ids: Sequence[int], message: RequestItems) -> Span:
    """Return the span of all tokens with keys and values that depend on later tokens and items."""
    ((start, end),) = message.units()
    digest = hashlib.sha256(b"".join(token.to_bytes(4, "little") for token in token_ids[start:end]))
    for item in message.items:
        digest.update(item.content_hash)
    return Span(start, end - start, "prompt", digest.digest())


def _span_before(items: Sequence[RequestItem]) -> list[Span]:
    """Return the span of tokens before the first item of cross attention: they read all items."""
    start = items[0].runs[0].start
    digest = hashlib.sha256(b"".join(item.content_hash for item in items))
    return [Span(0, start, "states", digest.digest())] if start else []


def _runs(positions: Sequence[int]) -> list[ItemRun]:
    """Return consecutive positions as runs."""
    runs: list[ItemRun] = []
    for row, position in enumerate(positions):
        last = runs[-1] if runs else None
        if last is not None and last.start + last.length == position:
            runs[-1] = ItemRun(last.start, last.length + 1, last.row)
        else:
            runs.append(ItemRun(position, 1, row))
    return runs
