"""From a conversation to the events of its answer: checked, rendered, generated, read. Knows no protocol."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from builtin_plugins.routes.beams import answering
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.events import Begun, Ended, Event, Scored
from builtin_plugins.routes.conversation.formats import AnswerReader, Formats
from builtin_plugins.routes.conversation.running import engine_id, sound
from builtin_plugins.routes.conversation.sampling import sampling_params
from core.api import (
    CallBegun,
    CallEnded,
    CompletionOutput,
    InvalidRequest,
    Piece,
    ReasoningPiece,
    RequestFailed,
    RequestOutput,
    SamplingParams,
    TextPiece,
)


@dataclass(frozen=True, slots=True)
class Turn:
    """A conversation as the engine takes it; the messages themselves are not kept, they may be large."""

    sampling: SamplingParams
    """As the client asked."""
    ids: list[int]
    """Of the prompt."""
    options: Mapping[str, Any]
    """Keywords of the engine's request."""
    reader: AnswerReader | None
    """Reads reasoning and tool calls out of the answer, where there may be any."""
    most_calls: int | None
    beams: float | None = None
    """As `Conversation.beams`."""

    def begin(self) -> Choice:
        """Return what reads one of the answers."""
        return Choice(self.reader, self.sampling, self.most_calls)


class Conversations:
    """Answers conversations with one engine."""

    def __init__(self, engine: Any, formats: Formats) -> None:
        self._engine = engine
        self._formats = formats

    @property
    def limits_thinking(self) -> bool:
        """Say whether thoughts can be given a budget."""
        return self._formats.limits_thinking

    async def turn(self, asked: Conversation) -> Turn:
        """Return a conversation made ready. Raises `InvalidRequest` for what cannot be asked."""
        self._formats.check(asked)
        sampling = self._sampling(asked)
        text, ids = await self._render(asked, keep=sampling.truncate_prompt_tokens)
        options = {"priority": asked.priority, "cache_salt": asked.cache_salt, "client": asked.client, **asked.given}
        most_calls = None if asked.parallel_tool_calls else 1
        return Turn(sampling, ids, options, self._formats.reader(asked, text), most_calls, asked.beams)

    async def count(self, asked: Conversation) -> int:
        """Return how many tokens the prompt of a conversation has."""
        _, ids = await self._render(asked)
        return len(ids)

    def outputs(self, turn: Turn, shown_id: str) -> AsyncGenerator[RequestOutput]:
        """Ask the engine; nothing starts before the outputs are read."""
        outputs: AsyncIterator[RequestOutput] = answering(self._engine, turn.beams)(
            {"prompt_token_ids": turn.ids},
            turn.sampling if turn.reader is None else turn.reader.sampling(turn.sampling),
            engine_id(shown_id),
            **turn.options,
        )
        return sound(outputs)

    async def events(self, turn: Turn, shown_id: str) -> AsyncGenerator[Event]:
        """Yield what a single answer brings, as it comes, the last one `Ended`."""
        choice, generated, cached = turn.begin(), 0, 0
        thoughts: list[str] = []
        begun, last = False, None
        async with aclosing(self.outputs(turn, shown_id)) as outputs:
            async for output in outputs:
                if not begun:
                    begun, cached = True, output.num_cached_tokens or 0
                    yield Begun(len(turn.ids), cached)
                for completion in output.outputs:
                    generated += len(completion.token_ids)
                    if completion.logprobs is not None:
                        yield Scored(completion.token_ids, completion.logprobs)
                    for piece in choice.take(completion):
                        if isinstance(piece, ReasoningPiece):
                            thoughts.append(piece.text)
                        yield piece
                    if completion.finish_reason is not None:
                        last = completion
        if last is None:
            raise RequestFailed("the engine ended the request without an output.")
        yield Ended(
            reason=choice.finish_reason(last) or "stop",
            stop=last.stop_reason if isinstance(last.stop_reason, str) else None,
            prompt_tokens=len(turn.ids),
            cached_tokens=cached,
            generated_tokens=generated,
            reasoning_tokens=await self._num_tokens("".join(thoughts)),
            context_full=generated != turn.sampling.max_tokens
            and len(turn.ids) + generated >= self._engine.max_model_len,
        )

    async def _num_tokens(self, text: str) -> int:
        return len(await self._engine.tokenize(text, False)) if text else 0

    def _sampling(self, asked: Conversation) -> SamplingParams:
        decided = {**asked.decided, **self._formats.constraint(asked)}
        if extra_args := {**asked.plugin_args, **self._formats.budget(asked)}:
            decided["extra_args"] = extra_args
        defaults = {"max_tokens": None, **self._engine.sampling_defaults}
        return sampling_params(asked.sampling, defaults, stream=asked.stream, **decided)

    async def _render(self, asked: Conversation, keep: int | None = None) -> tuple[str, list[int]]:
        if not asked.messages:
            raise InvalidRequest("messages", "is empty; at least one message is needed.")
        begins = asked.add_generation_prompt
        text, ids = await self._engine.render_chat(
            asked.messages,
            keep=keep,
            client=asked.client,
            tools=self._formats.shown_tools(asked),
            chat_template=asked.chat_template,
            add_generation_prompt=not asked.continue_final_message if begins is None else begins,
            continue_final_message=asked.continue_final_message,
            template_kwargs=asked.template_kwargs,
        )
        if asked.add_special_tokens:
            ids = await self._engine.tokenize(text, True, keep=keep, client=asked.client)
        return text, ids


class Choice:
    """One answer, as it is read."""

    def __init__(self, reader: AnswerReader | None, sampling: SamplingParams, most_calls: int | None = None) -> None:
        self._reader = reader
        self._parser = None if reader is None else reader.begin(sampling)
        self._most_calls = most_calls
        self._name = ""
        """Of the call that has begun."""
        self._num_whole = self._num_broken = 0

    def take(self, completion: CompletionOutput) -> list[Piece]:
        """Return what some output brings."""
        if self._parser is None:
            return [TextPiece(completion.text)]
        pieces = self._parser.feed(completion.text, completion.special_spans).pieces
        if completion.finish_reason is not None:
            pieces = [*pieces, *self._parser.finish().pieces]
        return [piece for piece in pieces if self._note(piece)]

    def _note(self, piece: Piece) -> bool:
        """Count calls; say whether a piece is shown, or is of a call too many."""
        if isinstance(piece, ReasoningPiece | TextPiece):
            return True
        if self._most_calls is not None and piece.index >= self._most_calls + self._num_broken:
            return False
        if isinstance(piece, CallBegun):
            self._name = piece.name
        elif isinstance(piece, CallEnded):
            self._num_whole += piece.whole
            self._num_broken += not piece.whole
            if piece.whole and self._reader is not None:
                self._reader.note(self._name)
        return True

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Return why the answer ended: what the engine says, or `tool_calls` if a call is whole."""
        return "tool_calls" if completion.finish_reason == "stop" and self._num_whole else completion.finish_reason
