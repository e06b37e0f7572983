"""The scheduler half: encoder cache, budget of steps, whole spans, holders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builtin_plugins.features.multimodal.messages import (
    NAME,
    ItemRun,
    RequestItem,
    RequestItems,
    StepItems,
)
from builtin_plugins.features.multimodal.scheduling import MAX_IN_FLIGHT, EncoderScheduler
from builtin_plugins.features.multimodal.settings import Settings
from builtin_plugins.features.multimodal.store import TensorStore
from core.api import PluginError
from core.model_spec.tower import LookAhead
from core.step import Span
from tests.core.scheduler.fake_worker import VOCAB, Engine

BUDGET = 16


def limits(
    cache_tokens: int = 40,
    step_tokens: int = 12,
    *,
    whole_items: bool = False,
    slice_tokens: int = 0,
) -> Settings:
    return Settings(
        max_images=8,
        processor_kwargs={},
        trust_request_kwargs=False,
        enable_embeddings=False,
        max_embedding_bytes=0,
        store_bytes=0,
        cache_tokens=cache_tokens,
        step_tokens=step_tokens,
        chunk_tokens=BUDGET,
        slice_tokens=slice_tokens,
        whole_items=whole_items,
    )


def key_of(number: int) -> bytes:
    return bytes([number]) * 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a store."""
    made = str(tmp_path_factory.mktemp("store"))
    TensorStore(made).open()
    return made


class Batch:
    """An engine with requests that have items, and the encoder cache of a worker."""

    def __init__(self, settings: Settings, folder: str, **engine: Any) -> None:
        self.half = EncoderScheduler(settings)
        self.engine = Engine(extensions=[self.half], budget=BUDGET, **engine)
        self.folder = folder
        self.cached: set[bytes] = set()
        self.encoded: list[bytes] = []
        self.items: dict[str, RequestItems] = {}
        self.rows: dict[int, str] = {}
        self.done = 0
        self.parts: list[tuple[bytes, int, int]] = []
        """Parts of items that were encoded next to decode rows: (key, number, of how many)."""
        self.mixed: set[bytes] = set()
        """Items encoded for a chunk of the same step, next to decode rows."""
        self.num_cuts = 0
        """Steps that end within an item."""
        self.needs_whole_prompts = False

    def add(
        self,
        name: str,
        parts: list[tuple[int, int]],
        *,
        look_ahead: LookAhead = "",
        holder: str = "",
        was_known: bool = False,
        at_start: bool = False,
    ) -> None:
        """Add a request; parts are (text tokens, item of as many tokens as its number)."""
        prompt: list[int] = []
        items = []
        for gap, number in parts:
            prompt += [1 + len(prompt) % 5] * gap
            run = ItemRun(len(prompt), number, 0)
            prompt += [VOCAB - 1] * number
            items.append(RequestItem("image", key_of(number), number, [run], was_known))
        prompt.append(3)
        runs = [(run.start, run.start + run.length) for item in items for run in item.runs]
        together = {"": [], "items": runs, "prompt": [(0, len(prompt))]}[look_ahead]
        message = RequestItems(self.folder, holder or name, items, together, at_start=at_start)
        store = TensorStore(self.folder)
        if message.holder not in store.holders():
            store.hold(message.holder, [])
        self.items[name] = message
        self.needs_whole_prompts |= at_start or look_ahead == "prompt"
        spans = tuple(
            Span(run.start, run.length, "image.0", item.content_hash)
            for item in items
            for run in item.runs
        )
        features = {NAME: msgspec.msgpack.encode(message)}
        self.engine.add(name, prompt, 3, eos_token_ids=(), features=features, spans=spans)

    def run(self) -> None:
        for _ in range(2000):
            if not self.engine.scheduler.has_work:
                break
            self.engine.step()
            for plan in self.engine.plans[self.done :]:
                self._apply(plan)
            self.done = len(self.engine.plans)
        assert not self.engine.scheduler.has_work

    def _apply(self, plan: Any) -> None:
        self.rows |= {new.row: new.request_id for new in plan.new}
        payload = plan.payloads.get(NAME)
        step = StepItems() if payload is None else msgspec.msgpack.decode(payload, type=StepItems)
        self.cached -= set(step.drop)
        assert not self.cached & set(step.encode), "an item of the cache was encoded again"
        self.cached |= set(step.encode)
        self.encoded += step.encode
        for ahead in step.ahead:
            assert ahead.is_last == (ahead.item.content_hash in step.encode)
            self.parts.append((ahead.item.content_hash, ahead.part, ahead.num_parts))
        needed: dict[bytes, int] = {}
        for row, start, count in zip(plan.rows, plan.starts, plan.counts, strict=True):
            message = self.items[self.rows[row]]
            if message.at_start:
                enters = any(new.row == row for new in plan.new)
                needed |= {item.content_hash: item.num_tokens for item in message.items if enters}
                continue
            for item in message.items:
                for run in item.runs:
                    end = run.start + run.length
                    self.num_cuts += run.start < start + count < end
                    if run.start < start + count and end > start:
                        needed[item.content_hash] = item.num_tokens
            for first, end in message.look_ahead:
                if first < start + count and end > start:
                    assert end <= start + count, "a span was cut"
        assert set(needed) <= self.cached
        if len(plan.decode_rows):
            self.mixed |= set(needed) & set(step.encode)
        if needed:
            size = sum(key[0] for key in self.cached)
            assert size <= max(self.half._settings.cache_tokens, sum(needed.values()))
        new = [key[0] for key in step.encode]
        within_budget = sum(new) <= self.half._settings.step_tokens or len(new) == 1
        assert within_budget or self.needs_whole_prompts


requests = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 14)), min_size=1, max_size=3),
    min_size=1,
    max_size=6,
)


@settings(max_examples=60)
@given(
    requests,
    st.sampled_from(("", "items")),
    st.integers(1, 40),
    st.integers(1, 20),
    st.sampled_from([1, 2]),
    st.sampled_from([0, 3]),
)
def test_every_chunk_finds_its_items_encoded_within_budget_and_cache(
    folder: str,
    parts: list[list[tuple[int, int]]],
    look_ahead: LookAhead,
    cache: int,
    step: int,
    depth: int,
    slice_tokens: int,
) -> None:
    settings = limits(cache, step, slice_tokens=slice_tokens)
    batch = Batch(settings, folder, depth=depth, max_model_len=80, num_blocks=48)
    for number, each in enumerate(parts):
        batch.add(f"r{number}", each, look_ahead=look_ahead)
    batch.run()
    batch.engine.check_idle()
    assert len(batch.engine.finished) == len(parts)
    assert batch.half.counters.encoded == len(batch.encoded)


@settings(max_examples=60)
@given(requests, st.integers(1, 40), st.integers(1, 20), st.sampled_from([1, 2]))
def test_a_request_with_encoder_input_enters_with_all_items_encoded(
    folder: str, parts: list[list[tuple[int, int]]], cache: int, step: int, depth: int
) -> None:
    batch = Batch(limits(cache, step), folder, depth=depth, max_model_len=80, num_blocks=24)
    for number, each in enumerate(parts):
        batch.add(f"r{number}", each, at_start=True)
    batch.run()
    batch.engine.check_idle()
    assert len(batch.engine.finished) == len(parts)
    assert batch.half.counters.encoded == len(batch.encoded)


@settings(max_examples=60)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=2),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 8),
)
def test_a_prompt_of_tokens_that_see_each_other_is_one_chunk(
    folder: str, parts: list[list[tuple[int, int]]], step: int
) -> None:
    batch = Batch(limits(step_tokens=step), folder, max_model_len=80, num_blocks=48)
    for number, each in enumerate(parts):
        batch.add(f"r{number}", each, look_ahead="prompt")
    batch.run()
    batch.engine.check_idle()
    assert len(batch.engine.finished) == len(parts)


def test_a_request_that_got_no_blocks_enters_once_they_are_free(folder: str) -> None:
    batch = Batch(limits(step_tokens=1), folder, depth=2, max_model_len=80, num_blocks=24)
    batch.add("first", [(0, 1), (9, 14), (9, 14)], at_start=True)
    batch.add("second", [(0, 2), (5, 14), (9, 14)], at_start=True)
    batch.run()
    assert list(batch.engine.finished) == ["first", "second"]


@pytest.mark.parametrize("whole_items", [False, True])
def test_items_are_cut_into_chunks_unless_disabled(folder: str, whole_items: bool) -> None:
    batch = Batch(limits(whole_items=whole_items), folder, max_model_len=80, num_blocks=48)
    for number, parts in enumerate([[(9, 10), (7, 12)], [(12, 14)], [(3, 11), (6, 13)]]):
        batch.add(f"r{number}", parts)
    batch.run()
    assert len(batch.engine.finished) == 3
    assert (batch.num_cuts == 0) == whole_items


def test_equal_items_are_encoded_once_and_prefix_hits_never(folder: str) -> None:
    batch = Batch(limits(), folder)
    batch.add("a", [(3, 8), (2, 5)])
    batch.add("b", [(3, 8), (2, 5)])
    batch.run()
    batch.add("c", [(3, 8), (2, 5)])
    batch.run()
    assert sorted(batch.encoded) == [key_of(5), key_of(8)]


def test_items_of_requests_and_those_processed_before_are_counted(folder: str) -> None:
    batch = Batch(limits(), folder)
    batch.add("a", [(3, 8), (2, 5)])
    batch.add("b", [(3, 8)], was_known=True)
    batch.add("c", [(3, 8)], was_known=True, holder="b")  # another sequence of the same request
    batch.run()
    gauges = batch.half.gauges()
    assert (gauges["mm_cache_queries_total"], gauges["mm_cache_hits_total"]) == (3, 1)


def test_an_evicted_item_is_encoded_once_more(folder: str) -> None:
    batch = Batch(limits(cache_tokens=8), folder, prefix_caching=False)
    for number, name in ((8, "a"), (7, "b"), (8, "c")):
        batch.add(name, [(2, number)])
        batch.run()
    assert batch.encoded == [key_of(8), key_of(7), key_of(8)]
    assert batch.half.counters.evicted == 2
    assert batch.half.gauges()["mm_encoder_runs_total"] == 3


def test_rows_without_such_a_span_are_not_limited_when_others_limit_theirs() -> None:
    class Limiting:
        """An extension that limits rows, such as masks of structured outputs."""

        name = "limiting"

        def limits(self, rows: Any) -> dict[int, int]:
            return {}

    engine = Engine(extensions=[EncoderScheduler(limits()), Limiting()], budget=BUDGET)
    engine.add("text", [1, 2, 3], 5, eos_token_ids=())
    engine.run()
    assert list(engine.finished) == ["text"]


def test_a_span_longer_than_mixed_steps_pauses_decode_rows(folder: str) -> None:
    batch = Batch(limits(), folder, max_mixed_prefill_tokens=6, max_model_len=64)
    batch.engine.add("text", [1, 2, 3], 40, eos_token_ids=())
    batch.items["text"] = RequestItems("", "", [])
    batch.engine.step()
    batch.add("image", [(2, 14)], look_ahead="items")
    batch.run()
    ended = list(batch.engine.finished)
    assert ended == ["image", "text"], "the image waited for the whole text"
    batch.engine.check_outputs()


def test_the_last_sequence_of_a_request_releases_its_tensors(tmp_path: Path) -> None:
    store = TensorStore(str(tmp_path))
    store.open()
    batch = Batch(limits(), folder=str(tmp_path))
    batch.add("a#0", [(2, 4)], holder="both")
    batch.add("a#1", [(2, 4)], holder="both")
    batch.engine.abort("a#0")
    assert list(store.holders()) == ["both"]
    batch.run()
    assert list(store.holders()) == []


def test_tensors_of_a_request_aborted_in_its_prompt_stay_for_the_steps_in_flight(
    tmp_path: Path,
) -> None:
    store = TensorStore(str(tmp_path))
    store.open()
    store.hold("a", [])
    batch = Batch(limits(), folder=str(tmp_path), max_model_len=80)
    batch.add("a", [(2, 4), (30, 5)])
    batch.engine.step()
    batch.engine.abort("a")
    assert list(store.holders()) == ["a"]
    batch.engine.add("text", [1, 2, 3], MAX_IN_FLIGHT + 2, eos_token_ids=())
    batch.items["text"] = RequestItems("", "", [])
    batch.engine.run()
    assert list(store.holders()) == []


def test_request_with_released_items_fails_alone(folder: str) -> None:
    batch = Batch(limits(), folder)
    message = RequestItems(folder, "released", [])
    features = {NAME: msgspec.msgpack.encode(message)}
    with pytest.raises(PluginError, match="released before the request arrived") as failure:
        batch.engine.add("late", [1, 2, 3], 3, eos_token_ids=(), features=features)
    assert not failure.value.is_fault
    batch.add("good", [(2, 4)])
    batch.run()
    assert list(batch.engine.finished) == ["good"]


def test_a_request_that_never_started_releases_its_tensors_at_once(tmp_path: Path) -> None:
    store = TensorStore(str(tmp_path))
    store.open()
    store.hold("a", [])
    batch = Batch(limits(), folder=str(tmp_path))
    batch.add("a", [(2, 4)])
    batch.engine.abort("a")
    assert list(store.holders()) == []


def waiting(folder: str, cache_tokens: int = 40) -> Batch:
    """Return a batch of one row, which a text request has for a while."""
    batch = Batch(limits(cache_tokens=cache_tokens), folder, max_num_seqs=1)
    batch.engine.add("text", [1, 2, 3], 20, eos_token_ids=())
    batch.items["text"] = RequestItems("", "", [])
    batch.engine.step()
    return batch


def steps(batch: Batch, count: int) -> None:
    for _ in range(count):
        batch.engine.step()
        for plan in batch.engine.plans[batch.done :]:
            batch._apply(plan)
        batch.done = len(batch.engine.plans)


def test_items_of_waiting_requests_are_encoded_ahead_one_a_step(folder: str) -> None:
    batch = waiting(folder)
    batch.add("a", [(2, 8), (1, 5)])
    batch.add("b", [(2, 8), (1, 6)])
    steps(batch, 1)
    assert batch.encoded == [key_of(8)]
    steps(batch, 4)
    assert batch.encoded == [key_of(8), key_of(5), key_of(6)]
    batch.run()
    assert batch.encoded == [key_of(8), key_of(5), key_of(6)]
    assert batch.half.counters.evicted == 0


def test_nothing_is_encoded_ahead_that_evicts_or_may_be_a_prefix_hit(folder: str) -> None:
    batch = waiting(folder, cache_tokens=8)
    batch.add("a", [(2, 6)])
    batch.add("b", [(2, 5)])
    steps(batch, 4)
    assert batch.encoded == [key_of(6)]
    batch.run()
    assert batch.half.counters.evicted == 1
    batch.engine.add("text2", [1, 2, 3], 20, eos_token_ids=())
    batch.items["text2"] = RequestItems("", "", [])
    batch.engine.step()
    batch.add("c", [(2, 6)])  # the same prompt as "a"
    batch.run()
    assert batch.encoded == [key_of(6), key_of(5)]


def decoding(folder: str, **engine: Any) -> Batch:
    """Return a batch in which a text request decodes."""
    batch = Batch(limits(**engine), folder, max_model_len=80, num_blocks=48)
    batch.engine.add("text", [1, 2, 3], 40, eos_token_ids=())
    batch.items["text"] = RequestItems("", "", [])
    steps(batch, 1)
    return batch


@pytest.mark.parametrize("look_ahead", ["", "items"])
def test_items_are_encoded_before_their_step_next_to_decode_rows(
    folder: str, look_ahead: LookAhead
) -> None:
    batch = decoding(folder)
    batch.add("a", [(2, 8), (1, 5)], look_ahead=look_ahead)
    batch.add("b", [(0, 7), (1, 8)], look_ahead=look_ahead)
    batch.run()
    assert sorted(batch.encoded) == [key_of(number) for number in (5, 7, 8)]
    assert batch.mixed == set()
    assert list(batch.engine.finished) == ["a", "b", "text"]
    batch.engine.check_outputs()


def test_large_items_are_encoded_in_parts_next_to_decode_rows(folder: str) -> None:
    batch = decoding(folder, slice_tokens=4)
    batch.add("a", [(2, 10), (1, 3)])
    batch.run()
    key = key_of(10)
    assert batch.parts == [(key, 1, 3), (key, 2, 3), (key, 3, 3), (key_of(3), 1, 1)]
    assert batch.encoded == [key, key_of(3)]
    assert batch.mixed == set()
    batch.engine.check_outputs()


def test_an_item_in_parts_is_finished_at_once_when_nothing_decodes(folder: str) -> None:
    batch = decoding(folder, slice_tokens=1)
    batch.add("a", [(2, 10)])
    steps(batch, 3)
    batch.engine.abort("text")
    batch.run()
    assert batch.parts == [(key_of(10), number, 10) for number in (1, 2, 3)]
    assert batch.encoded == [key_of(10)]


def test_an_item_in_parts_is_given_up_with_its_last_request(folder: str) -> None:
    batch = decoding(folder, slice_tokens=1)
    batch.add("a", [(2, 10)])
    steps(batch, 3)
    batch.add("b", [(3, 10)])
    batch.engine.abort("a")
    done = batch.done
    batch.run()
    dropped = [
        msgspec.msgpack.decode(plan.payloads[NAME], type=StepItems).drop
        for plan in batch.engine.plans[done:]
        if NAME in plan.payloads
    ]
    assert dropped[0] == [key_of(10)]
    assert [number for _, number, _ in batch.parts] == [1, 2, 3, *range(1, 11)]
    assert batch.encoded == [key_of(10)]


def test_items_that_do_not_fit_the_cache_are_encoded_in_their_step(folder: str) -> None:
    batch = decoding(folder, cache_tokens=6)
    batch.add("a", [(2, 8)])
    batch.add("b", [(2, 5)])
    batch.run()
    assert batch.encoded == [key_of(8), key_of(5)]
    assert batch.mixed == {key_of(8)}


def test_large_items_are_encoded_one_a_step_next_to_decode_rows(folder: str) -> None:
    batch = decoding(folder, step_tokens=12)
    batch.add("a", [(0, 7), (0, 6)])
    steps(batch, 1)
    assert batch.encoded == [key_of(7)]
    steps(batch, 1)
    assert batch.encoded == [key_of(7), key_of(6)]


def test_tensors_encoded_ahead_outlive_an_abort_by_the_steps_in_flight(tmp_path: Path) -> None:
    store = TensorStore(str(tmp_path))
    store.open()
    store.hold("a", [])
    batch = decoding(str(tmp_path))
    batch.add("a", [(0, 8)])
    steps(batch, 1)
    assert batch.encoded == [key_of(8)]
    batch.engine.abort("a")
    assert list(store.holders()) == ["a"]
    steps(batch, MAX_IN_FLIGHT + 1)
    assert list(store.holders()) == []
