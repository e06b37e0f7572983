"""From a conversation to the events of its answer: checked, rendered, generated, read.

Knows no protocol.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builtin_plugins.routes.beams import answering
from builtin_plugins.routes.conversation.asked import Conversation
from builtin_plugins.routes.conversation.events import Begun, Ended, Event, Scored
from builtin_plugins.routes.conversation.formats import AnswerReader, Formats
from builtin_plugins.routes.conversation.running import sound
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
    """A conversation as the engine takes it; the messages themselves are not kept, they may be
    large.
    """

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
        options = {
            "priority": asked.priority,
            "cache_salt": asked.cache_salt,
            "client": asked.client,
            **asked.given,
        }
        most_calls = None if asked.parallel_tool_calls else 1
        return Turn(
            sampling, ids, options, self._formats.reader(asked, text), most_calls, asked.beams
        )

    async def count(self, asked: Conversation) -> int:
        """Return how many tokens the prompt of a conversation has."""
        _, ids = await self._render(asked)
        return len(ids)

    def outputs(self, turn: Turn, run_id: str) -> AsyncGenerator[RequestOutput]:
        """Ask the engine under some id; nothing starts before the outputs are read."""
        outputs: AsyncIterator[RequestOutput] = answering(self._engine, turn.beams)(
            {"prompt_token_ids": turn.ids},
            turn.sampling if turn.reader is None else turn.reader.sampling(turn.sampling),
            run_id,
            **turn.options,
        )
        return sound(outputs)

    def answer(self, turn: Turn) -> Answer:
        """Return what reads the events of a single answer out of its outputs."""
        return Answer(self._engine, turn)

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


class Answer:
    """A single answer as the events that it brings."""

    def __init__(self, engine: Any, turn: Turn) -> None:
        self._engine = engine
        self._turn = turn
        self._choice = turn.begin()
        self._begun = False
        self._cached = 0
        self._thoughts: list[str] = []
        self._last: CompletionOutput | None = None

    def of(self, output: RequestOutput) -> list[Event]:
        """Return what an output brings."""
        events: list[Event] = []
        if not self._begun:
            self._begun = True
            self._cached = output.num_cached_tokens or 0
            events.append(Begun(len(self._turn.ids), self._cached))
        for completion in output.outputs:
            events += self.more(completion)
            if completion.finish_reason is not None:
                self._last = completion
        return events

    def more(self, completion: CompletionOutput) -> Sequence[Event]:
        """Return what something new of its sequence brings."""
        pieces = self._choice.take(completion)
        self._thoughts += [piece.text for piece in pieces if isinstance(piece, ReasoningPiece)]
        if completion.logprobs is None:
            return pieces
        return [Scored(completion.token_ids, completion.logprobs), *pieces]

    async def ended(self) -> Ended:
        """Return the last event, when there are no more outputs.

        Raises `RequestFailed` where there have been none.
        """
        turn = self._turn
        last = self._last
        if last is None:
            raise RequestFailed("the engine ended the request without an output.")
        thoughts = "".join(self._thoughts)
        generated = last.num_tokens
        return Ended(
            reason=self._choice.finish_reason(last) or "stop",
            stop=last.stop_reason if isinstance(last.stop_reason, str) else None,
            prompt_tokens=len(turn.ids),
            cached_tokens=self._cached,
            generated_tokens=generated,
            reasoning_tokens=len(await self._engine.tokenize(thoughts, False)) if thoughts else 0,
            context_full=generated != turn.sampling.max_tokens
            and len(turn.ids) + generated >= self._engine.max_model_len,
        )


@dataclass(frozen=True, slots=True)
class AnswerEncoder:
    """Makes of an answer what a protocol's stream tells of it."""

    answer: Answer
    encode: Callable[[Sequence[Event]], bytes]

    def of(self, output: RequestOutput) -> bytes:
        """Return what is told of an output."""
        return self.encode(self.answer.of(output))

    def more(self, completion: CompletionOutput) -> bytes:
        """Return what is told of something new of its sequence."""
        return self.encode(self.answer.more(completion))


class Choice:
    """One answer, as it is read."""

    def __init__(
        self, reader: AnswerReader | None, sampling: SamplingParams, most_calls: int | None = None
    ) -> None:
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
        return (
            "tool_calls"
            if completion.finish_reason == "stop" and self._num_whole
            else completion.finish_reason
        )
