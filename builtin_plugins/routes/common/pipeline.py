"""From a conversation to the events of its answer: check, render, generate, parse."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from builtin_plugins.output_parsers.api import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from builtin_plugins.routes.common.beam_search import generate_or_search
from builtin_plugins.routes.common.call_check import CallCheck
from builtin_plugins.routes.common.conversation import (
    AnswerFinished,
    AnswerStarted,
    Conversation,
    Event,
    TokenLogprobs,
)
from builtin_plugins.routes.common.costs import cost_fields
from builtin_plugins.routes.common.media_parts import (
    count_tokens,
    load_media,
    media_prompt,
    read_media,
    releasing,
)
from builtin_plugins.routes.common.output_formats import AnswerFormats, OutputFormats
from builtin_plugins.routes.common.requests import raise_on_error
from builtin_plugins.routes.common.run_ledger import RecordedRun
from builtin_plugins.routes.common.sampling import sampling_params
from builtin_plugins.routes.common.thinking import ThinkingChoice
from builtin_plugins.routes.common.tool_schemas import enforced_tools
from core.api import CompletionOutput, InvalidRequest, RequestFailed, RequestOutput, SamplingParams
from core.api.serving import ServedEngine


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A rendered conversation, ready for the engine. It does not hold the messages."""

    sampling: SamplingParams
    """Parameters as the client sent them."""
    ids: list[int]
    """Token ids of the prompt; with media, one placeholder each."""
    text: str
    """The rendered text of the prompt."""
    media: dict[str, Any]
    """The request's `multi_modal_data`; emptied when the engine gets it, since it may be large."""
    options: Mapping[str, Any]
    """Keyword arguments of the engine request."""
    formats: AnswerFormats | None
    """Formats of reasoning and tool calls in the answer; None: it is plain text."""
    max_calls: int | None
    """Largest number of tool calls in an answer; None: no limit."""
    beams: float | None = None
    """Length penalty of a beam search; None samples."""
    ignored: tuple[str, ...] = ()
    """Names of fields that had no effect."""
    call_check: CallCheck | None = None
    """Check of the calls of a whole answer; None: nothing is left out of their constraint."""

    def choice_parser(self, recorded: RecordedRun | None = None) -> ChoiceParser:
        """Return the parser of one of the answers; a recorded one keeps the ids of its calls."""
        return ChoiceParser(self.formats, self.sampling, self.max_calls, self.call_check, recorded)

    async def check_calls(self) -> None:
        """Check the parsed calls of a whole answer."""
        if self.call_check is not None:
            await self.call_check.run()

    @property
    def headers(self) -> dict[str, str]:
        """Response headers about the checked calls."""
        return {} if self.call_check is None else self.call_check.headers


class ChatPipeline:
    """Answers conversations with one engine: checks, renders, generates and parses."""

    def __init__(self, engine: ServedEngine, formats: OutputFormats) -> None:
        self._engine = engine
        self._formats = formats

    @property
    def can_limit_thinking(self) -> bool:
        """Whether a request may set a thinking budget."""
        return self._formats.can_limit_thinking

    async def prepare(self, conversation: Conversation) -> PreparedChat:
        """Check and render a conversation. Raises `InvalidRequest`."""
        self._formats.check(conversation)
        unenforced = await _enforce_tools(conversation)
        thinking = await self._choose_thinking(conversation)
        sampling = self._sampling(conversation)
        media = read_media(self._engine, conversation.messages)
        conversation.messages = media.messages
        if media.sources and conversation.beams is not None:
            raise InvalidRequest(
                "use_beam_search", "got true with images; expected false. Remove it."
            )
        text, ids = await self._render(conversation, keep=sampling.truncate_prompt_tokens)
        data = await load_media(
            self._engine, media.sources, client=conversation.client, reserve=conversation.reserve
        )
        options = {
            "priority": conversation.priority,
            "cache_salt": conversation.cache_salt,
            "client": conversation.client,
            **conversation.keywords,
        }
        return PreparedChat(
            sampling,
            ids,
            text if data else "",
            data,
            options,
            self._formats.answer_formats(conversation, text, sampling, thinking.parser_kwargs),
            None if conversation.parallel_tool_calls else 1,
            conversation.beams,
            (*thinking.ignored, *unenforced, *media.ignored),
            CallCheck(conversation.tools) if unenforced and not conversation.stream else None,
        )

    async def count(self, conversation: Conversation) -> int:
        """Return the number of prompt tokens of a conversation."""
        await self._choose_thinking(conversation)
        media = read_media(self._engine, conversation.messages)
        conversation.messages = media.messages
        text, ids = await self._render(conversation)
        if not media.sources:
            return len(ids)
        client = conversation.client
        data = await load_media(
            self._engine, media.sources, client=client, reserve=conversation.reserve
        )
        prompt = media_prompt(ids, text, data)
        salt = conversation.cache_salt
        return await count_tokens(self._engine, prompt, client=client, cache_salt=salt)

    def outputs(
        self, chat: PreparedChat, run_id: str, recorded: RecordedRun | None = None
    ) -> AsyncGenerator[RequestOutput]:
        """Return the outputs of engine request `run_id`; it starts with the first read.

        Those of a recorded answer go on where it was left.
        """
        sampling = chat.sampling
        options = dict(chat.options)
        whole = chat.beams is not None or sampling.logprobs is not None or bool(chat.media)
        if recorded is not None and whole:
            recorded.close()
            recorded = None
        if recorded is not None:
            options["resumable"] = True
            if sampling.seed is None:
                sampling = sampling.clone(seed=recorded.seed)
        if chat.formats is not None:
            room = self._engine.max_model_len - len(chat.ids)
            options = {**options, **chat.formats.engine_keywords(sampling)}
            sampling = chat.formats.engine_params(sampling, room)
        data = dict(chat.media)
        chat.media.clear()
        outputs: AsyncIterator[RequestOutput] = generate_or_search(self._engine, chat.beams)(
            media_prompt(chat.ids, chat.text, data), sampling, run_id, **options
        )
        live = raise_on_error(releasing(outputs, data) if data else outputs)
        return live if recorded is None else recorded.outputs(live, chat.ids)

    async def reasoning_tokens(
        self, chat: PreparedChat, parsers: Iterable[ChoiceParser]
    ) -> int | None:
        """Return the number of reasoning tokens in some choices; None without a parser."""
        if chat.formats is None or chat.formats.reasoning is None:
            return None
        texts = [parser.reasoning for parser in parsers]
        counts = [len(await self._engine.tokenize(text, False)) for text in texts if text]
        return sum(counts)

    def answer(self, chat: PreparedChat, recorded: RecordedRun | None = None) -> AnswerStream:
        """Return the event stream of a single answer."""
        return AnswerStream(self._engine, chat, recorded)

    async def _choose_thinking(self, conversation: Conversation) -> ThinkingChoice:
        """Resolve the reasoning fields of a conversation to template arguments and a budget."""
        choose = partial(self._formats.choose_thinking, conversation, self._engine.renderer)
        # A template of the request is compiled for it, which takes milliseconds.
        chosen = choose() if conversation.chat_template is None else await asyncio.to_thread(choose)
        conversation.template_kwargs = chosen.template_kwargs
        if chosen.ends_at_once and conversation.thinking_token_budget is None:
            conversation.thinking_token_budget = 0
        return chosen

    def _sampling(self, conversation: Conversation) -> SamplingParams:
        overrides = {**conversation.overrides, **self._formats.constraint(conversation)}
        extra_args = {**conversation.plugin_args, **self._formats.thinking_args(conversation)}
        if extra_args:
            overrides["extra_args"] = extra_args
        defaults = {"max_tokens": None, **self._engine.sampling_defaults}
        return sampling_params(
            conversation.sampling, defaults, stream=conversation.stream, **overrides
        )

    async def _render(
        self, conversation: Conversation, keep: int | None = None
    ) -> tuple[str, list[int]]:
        if not conversation.messages:
            raise InvalidRequest("messages", "is empty; at least one message is needed.")
        add_generation_prompt = conversation.add_generation_prompt
        if add_generation_prompt is None:
            add_generation_prompt = not conversation.continue_final_message
        text, ids = await self._engine.render_chat(
            conversation.messages,
            keep=keep,
            client=conversation.client,
            tools=self._formats.prompt_tools(conversation),
            chat_template=conversation.chat_template,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=conversation.continue_final_message,
            template_kwargs=conversation.template_kwargs,
        )
        if conversation.add_special_tokens:
            ids = await self._engine.tokenize(text, True, keep=keep, client=conversation.client)
        return text, ids


async def _enforce_tools(conversation: Conversation) -> tuple[str, ...]:
    """Find what forced calls can be held to; return the paths of what they are not held to."""
    choice = conversation.tool_choice
    if not conversation.tools or choice in (None, "none", "auto"):
        return ()
    conversation.enforced_tools, ignored = await asyncio.to_thread(
        enforced_tools, conversation.tools, choice
    )
    return ignored


class AnswerStream:
    """Converts the outputs of a single answer to events."""

    def __init__(
        self, engine: ServedEngine, chat: PreparedChat, recorded: RecordedRun | None = None
    ) -> None:
        self._engine = engine
        self._chat = chat
        self._parser = chat.choice_parser(recorded)
        self._is_started = False
        self._num_prompt_tokens = len(chat.ids)
        self._cached = 0
        self._last: CompletionOutput | None = None
        self._counts: Mapping[str, float] = {}

    def events_for(self, output: RequestOutput) -> list[Event]:
        """Return the events of an output."""
        events: list[Event] = []
        if not self._is_started:
            self._is_started = True
            self._num_prompt_tokens = len(output.prompt_token_ids or self._chat.ids)
            self._cached = output.num_cached_tokens or 0
            events.append(AnswerStarted(self._num_prompt_tokens, self._cached))
        self._counts = output.counts
        for completion in output.outputs:
            events += self.delta(completion)
            if completion.finish_reason is not None:
                self._last = completion
        return events

    def delta(self, completion: CompletionOutput) -> Sequence[Event]:
        """Return the events of new text of the sequence."""
        pieces = self._parser.parse(completion)
        if completion.logprobs is None:
            return pieces
        return [TokenLogprobs(completion.token_ids, completion.logprobs), *pieces]

    async def finish(self) -> AnswerFinished:
        """Return the final event, after all outputs. Raises `RequestFailed` if there were none."""
        chat = self._chat
        last = self._last
        if last is None:
            raise RequestFailed("the engine ended the request without an output.")
        reasoning = self._parser.reasoning
        generated = last.num_tokens
        reasoning_tokens = 0
        if reasoning:
            reasoning_tokens = len(await self._engine.tokenize(reasoning, False))
        is_full = self._num_prompt_tokens + generated >= self._engine.max_model_len
        return AnswerFinished(
            reason=self._parser.finish_reason(last) or "stop",
            stop=last.stop_reason if isinstance(last.stop_reason, str) else None,
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=self._cached,
            generated_tokens=generated,
            reasoning_tokens=reasoning_tokens,
            context_full=generated != chat.sampling.max_tokens and is_full,
            cost=cost_fields(self._counts),
        )


@dataclass(frozen=True, slots=True)
class AnswerEncoder:
    """Encodes an answer in a protocol's stream format."""

    answer: AnswerStream
    encode: Callable[[Sequence[Event]], bytes]

    def encode_output(self, output: RequestOutput) -> bytes:
        """Return the events of an output."""
        return self.encode(self.answer.events_for(output))

    def encode_delta(self, completion: CompletionOutput) -> bytes:
        """Return the events of new text of the sequence."""
        return self.encode(self.answer.delta(completion))


class ChoiceParser:
    """Parses one choice of an answer into text, reasoning and tool calls."""

    def __init__(
        self,
        formats: AnswerFormats | None,
        sampling: SamplingParams,
        max_calls: int | None = None,
        check: CallCheck | None = None,
        recorded: RecordedRun | None = None,
    ) -> None:
        self._formats = formats
        self._recorded = recorded
        self._parser = None if formats is None else formats.output_parser(sampling)
        self._max_calls = max_calls
        self._check = check
        self._arguments: list[str] = []
        """Arguments of the open call, if they are checked."""
        self._reasoning: list[str] = []
        self._name = ""
        """Name of the open call."""
        self._num_complete = 0
        self._num_broken = 0

    def parse(self, completion: CompletionOutput) -> list[Piece]:
        """Return the pieces of new text."""
        if self._parser is None:
            return [TextPiece(completion.text)]
        pieces = self._parser.feed(completion.text, completion.special_spans).pieces
        if completion.finish_reason is not None:
            pieces = [*pieces, *self._parser.finish().pieces]
        self._reasoning += [piece.text for piece in pieces if isinstance(piece, ReasoningPiece)]
        accepted = [piece for piece in pieces if self._accepts(piece)]
        if self._recorded is None:
            return accepted
        return [self._with_known_id(piece, self._recorded) for piece in accepted]

    def _with_known_id(self, piece: Piece, recorded: RecordedRun) -> Piece:
        if not isinstance(piece, CallBegun):
            return piece
        return CallBegun(piece.index, piece.name, recorded.call_id(piece.id))

    @property
    def reasoning(self) -> str:
        """All reasoning text so far."""
        return "".join(self._reasoning)

    def _accepts(self, piece: Piece) -> bool:
        """Count calls, and return False for pieces of a call beyond `max_calls`."""
        if isinstance(piece, ReasoningPiece | TextPiece):
            return True
        if self._max_calls is not None and piece.index >= self._max_calls + self._num_broken:
            return False
        if isinstance(piece, CallBegun):
            self._name = piece.name
            self._arguments.clear()
        elif isinstance(piece, ArgumentsPiece):
            if self._check is not None:
                self._arguments.append(piece.text)
        elif isinstance(piece, CallEnded):
            self._num_complete += piece.whole
            self._num_broken += not piece.whole
            if piece.whole and self._formats is not None:
                self._formats.count_call(self._name)
            if piece.whole and self._check is not None:
                self._check.add(self._name, "".join(self._arguments))
        return True

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Return the engine's finish reason, or `tool_calls` after at least one complete call."""
        if completion.finish_reason == "stop" and self._num_complete:
            return "tool_calls"
        return completion.finish_reason
