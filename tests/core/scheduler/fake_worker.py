"""A worker without a model: its "keys" are hashes of the token prefix of each position.

Reading back what a row sees therefore reveals every wrong prefix hit, every block reused too early
and every window cut too short. The next token is a function of the prefix, so outputs have an exact
expectation.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from builtin_plugins.features.journal.recorder import Journal
from core.errors import InvalidRequest
from core.kv import KVManager, plan_layout
from core.kv.windows import first_visible_position
from core.model_spec.kv import (
    ChunkedLocal,
    FullAttention,
    GroupLayout,
    KVLayout,
    LayerKV,
    RecurrentState,
    SlidingWindow,
)
from core.scheduler import Scheduler, SchedulerLimits
from core.step import EngineRequest, RequestDelta, StepPlan, StepResult
from core.testing.invariants import check_scheduler
from core.types import SamplingParams

EOS = 0
VOCAB = 23
POISON = (-2, -2)
"""Contents of a failed load. A reader continues, and all it writes and samples is wrong."""


def next_token(prefix_hash: int) -> int:
    return (prefix_hash >> 7) % VOCAB


def prefix_hash(parent: int, token: int) -> int:
    return hash((parent, token, 12345))


def expected_output(request: EngineRequest, max_model_len: int, salt: str = "") -> list[int]:
    """Return the output of the request alone, without cache, budget or other requests."""
    tokens = list(request.prompt_token_ids)
    state = hash_of(salt)
    for token in tokens:
        state = prefix_hash(state, token)
    limit = min(len(tokens) + request.max_tokens, max_model_len)
    output: list[int] = []
    while len(tokens) + len(output) < limit:
        token = next_token(state)
        output.append(token)
        if token in request.eos_token_ids:
            break
        state = prefix_hash(state, token)
    return output


def hash_of(salt: str) -> int:
    return sum(map(ord, salt)) * 7919 + 1


@dataclass
class Sequence:
    request_id: str
    tokens: list[int]
    tables: list[list[int]]
    root: int
    hashes: list[int] = field(default_factory=list)
    low: int = 0
    """Position after its last step if all draft tokens in flight are rejected."""
    high: int = 0
    """Position after its last step if all draft tokens in flight are accepted."""
    failed: bool = False
    tainted: bool = False

    def hash_at(self, position: int) -> int:
        while len(self.hashes) <= position:
            parent = self.hashes[-1] if self.hashes else self.root
            self.hashes.append(prefix_hash(parent, self.tokens[len(self.hashes)]))
        return self.hashes[position]


@dataclass
class Submitted:
    plan: StepPlan
    sequences: list[Sequence]
    """Sequences of the decode rows, then of the others; the next three are parallel to it."""
    starts: list[int | None]
    """First position; None for a decode row."""
    counts: list[int]
    num_draft_tokens: list[int]
    tables: list[list[list[int]]]
    touched: list[set[tuple[int, int]]]
    """(pool, block) pairs that each sequence reads or writes."""
    samples: list[int]
    """Indices into `sequences`."""


class FakeWorker:
    def __init__(self, layout: KVLayout, max_num_seqs: int, budget: int) -> None:
        self.layout = layout
        self.rows: list[Sequence | None] = [None] * max_num_seqs
        self.budget = budget
        self.salts: dict[str, str] = {}
        self.fail: dict[str, str] = {}
        self.contents: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        self.queue: deque[Submitted] = deque()
        self.last_step = 0
        self.num_computed = 0
        self.corrupt: dict[str, int] = {}
        """First position, by request, to corrupt in its next step."""
        self.num_tainted = 0
        """Number of tokens sampled from wrong keys."""
        self.num_accepted_drafts = 0
        """Number of accepted draft tokens."""

    def submit(self, plan: StepPlan) -> None:
        assert plan.step == self.last_step + 1
        self.last_step = plan.step
        self._apply(plan)
        assert plan.num_tokens <= self.budget
        assert all(count > 0 for count in plan.counts)
        assert len(plan.rows) == len(plan.starts) == len(plan.counts)
        sequences = [self.sequence(row) for row in (*plan.decode_rows, *plan.rows)]
        assert len({id(sequence) for sequence in sequences}) == len(sequences), (
            "a row computes twice in a step"
        )
        num_decodes = len(plan.decode_rows)
        samples = [*range(num_decodes), *(num_decodes + i for i in plan.samples)]
        drafts_per_row = plan.num_draft_tokens
        assert not drafts_per_row or len(drafts_per_row) == len(samples)
        assert not drafts_per_row or any(drafts_per_row)
        spare = [
            group.spec.spare
            for group in self.layout.groups
            if isinstance(group.spec, RecurrentState)
        ]
        assert not spare or sum(plan.num_draft_tokens) <= min(spare), (
            "more draft tokens than spare states"
        )
        num_drafts = [0] * len(sequences)
        for index, count in zip(samples, plan.num_draft_tokens, strict=False):
            num_drafts[index] = count
        starts = [*(None for _ in plan.decode_rows), *plan.starts]
        counts = [*(1 + count for count in num_drafts[:num_decodes]), *plan.counts]
        tables = [[list(table) for table in sequence.tables] for sequence in sequences]
        touched = []
        written = set()
        columns = zip(sequences, tables, starts, counts, num_drafts, strict=True)
        for sequence, table, start, count, drafts in columns:
            low, high = (sequence.low, sequence.high) if start is None else (start, start)
            sequence.low = low + count - drafts
            sequence.high = high + count
            writes = self._blocks(table, low, high + count, reads=False)
            assert not writes & written, "two rows write one block in one step"
            written |= writes
            for earlier in self.queue:
                for other, blocks in zip(earlier.sequences, earlier.touched, strict=True):
                    if other is not sequence:
                        assert not writes & blocks, "a block of a step in flight was reused"
            touched.append(self._blocks(table, low, high + count, reads=True))
        self.queue.append(
            Submitted(plan, sequences, starts, counts, num_drafts, tables, touched, samples)
        )

    def _apply(self, plan: StepPlan) -> None:
        in_flight = {id(sequence) for earlier in self.queue for sequence in earlier.sequences}
        for row in plan.ended:
            assert id(self.sequence(row)) not in in_flight, (
                "a row ended while a step in flight uses it"
            )
            self.rows[row] = None
        for new in plan.new:
            assert self.rows[new.row] is None, "a row was given twice"
            assert all(s is None or s.request_id != new.request_id for s in self.rows), (
                "a request has two rows"
            )
            root = hash_of(self.salts.get(new.request_id, ""))
            assert len(new.blocks) == len(self.layout.groups)
            self.rows[new.row] = Sequence(
                new.request_id, list(new.token_ids), [list(b) for b in new.blocks], root
            )
            assert new.row in plan.rows
        for row, group, blocks in plan.blocks:
            self.sequence(row).tables[group] += blocks

    def sequence(self, row: int) -> Sequence:
        sequence = self.rows[row]
        assert sequence is not None, "a plan names an empty row"
        return sequence

    def _blocks(
        self, table: list[list[int]], start: int, end: int, *, reads: bool
    ) -> set[tuple[int, int]]:
        blocks = set()
        for group, ids in zip(self.layout.groups, table, strict=True):
            low = first_visible_position(group.spec, start) if reads else start
            for block in ids[low // group.block_size : (end - 1) // group.block_size + 1]:
                assert block, "the null block is read or written"
                blocks.add((group.pool, block))
        return blocks

    def collect(self) -> StepResult:
        item = self.queue.popleft()
        plan = item.plan
        tokens = []
        errors = {}
        rows = [*plan.decode_rows, *plan.rows]
        payloads = self._loads(item)
        accepted = []
        for i, sequence in enumerate(item.sequences):
            known = item.starts[i]
            start = len(sequence.tokens) - 1 if known is None else known
            drafts = item.num_draft_tokens[i]
            end = start + item.counts[i] - drafts
            self.num_computed += end - start
            if end > len(sequence.tokens):
                assert sequence.failed, "a token is computed before it is known"
                end = len(sequence.tokens)
            if not (sequence.failed and known is None):  # a failed row's decode is dropped
                self._write_and_read(sequence, item.tables[i], start, end)
            if sequence.request_id in self.fail:
                sequence.failed = True
                errors[rows[i]] = self.fail[sequence.request_id]
                accepted += [0] if i in item.samples else []
            elif i in item.samples:
                assert end == len(sequence.tokens), "a row samples before the end of its tokens"
                count = 1 + next_token(sequence.hash_at(end - 1) * 31) % (1 + drafts)
                # Accepted draft tokens are computed.
                for position in range(end, end + count):
                    token = (next_token(sequence.hash_at(position - 1)) + sequence.tainted) % VOCAB
                    self.num_tainted += sequence.tainted
                    sequence.tokens.append(token)
                    tokens.append(token)
                    if position < end + count - 1:
                        self._write_and_read(sequence, item.tables[i], position, position + 1)
                # Rejected draft tokens leave keys that must not be read.
                for position in range(end + count - 1, end + drafts):
                    for index, group in enumerate(self.layout.groups):
                        if isinstance(group.spec, RecurrentState):
                            continue  # its state is in a spare block
                        self._write(
                            group,
                            item.tables[i][index][position // group.block_size],
                            position,
                            (-3, -3),
                        )
                sequence.low += count - 1
                sequence.high -= drafts - (count - 1)
                accepted.append(count)
                self.num_accepted_drafts += count - 1
            else:
                assert end < len(sequence.tokens), "a row at the end of its tokens does not sample"
        sampled = [rows[i] for i in item.samples]
        if not (errors or item.plan.num_draft_tokens):
            accepted = []
        return StepResult(
            plan.step, sampled, tokens, errors=errors, payloads=payloads, accepted=accepted
        )

    def _loads(self, item: Submitted) -> dict[str, list[bytes]]:
        """Execute the connector's loads and corruptions; return the failed ones."""
        bad: dict[str, int] = {}
        sent = json.loads(item.plan.payloads.get("connector", b"{}"))
        for sequence, tables, known in zip(item.sequences, item.tables, item.starts, strict=True):
            name = sequence.request_id
            start = len(sequence.tokens) - 1 if known is None else known
            if name in sent and item.plan.new:
                first, end, wrong_from, here = sent[name]
                if here:
                    self.load(sequence, tables, range(first, end), wrong_from, start)
                if wrong_from < end:
                    bad[name] = wrong_from
            if name in self.corrupt:
                wrong_from = self.corrupt.pop(name)
                self.load(sequence, tables, range(wrong_from, start), wrong_from, start)
                bad[name] = min(wrong_from, bad.get(name, wrong_from))
        return {"connector": [json.dumps(bad).encode()]} if bad else {}

    def load(
        self,
        sequence: Sequence,
        tables: list[list[int]],
        positions: range,
        wrong_from: int,
        reader: int,
    ) -> None:
        """Write external keys that a token at `reader` sees; wrong ones from `wrong_from` on."""
        for index, group in enumerate(self.layout.groups):
            low = first_visible_position(group.spec, reader) // group.block_size * group.block_size
            state = isinstance(group.spec, RecurrentState)
            for position in (
                range(positions.start, min(positions.stop, reader)) if state else positions
            ):
                block = tables[index][
                    position // group.block_size : position // group.block_size + 1
                ]
                if block and block[0] and position >= low:
                    wrong = position >= wrong_from
                    self._write(
                        group,
                        block[0],
                        position,
                        POISON if wrong else (index, sequence.hash_at(position)),
                    )

    def fail_steps(self) -> None:
        """Fail the steps in flight: their writes are garbage."""
        for item in self.queue:
            for sequence, tables, known, count in zip(
                item.sequences, item.tables, item.starts, item.counts, strict=True
            ):
                start = len(sequence.tokens) - 1 if known is None else known
                for group, table in zip(self.layout.groups, tables, strict=True):
                    for position in range(start, start + count):
                        self._write(group, table[position // group.block_size], position, (-1, -1))
        self.queue.clear()

    def _write(self, group: GroupLayout, block: int, position: int, value: tuple[int, int]) -> None:
        cell = self.contents.setdefault((group.pool, block), {})
        if isinstance(group.spec, RecurrentState):
            cell.clear()  # one state: that after the last token
            if value == POISON:  # any position reads it
                cell.update(dict.fromkeys(range(group.block_size), POISON))
        cell[position % group.block_size] = value

    def _write_and_read(
        self, sequence: Sequence, tables: list[list[int]], start: int, end: int
    ) -> None:
        for index, group in enumerate(self.layout.groups):
            size = group.block_size
            table = tables[index]
            for position in range(first_visible_position(group.spec, start), min(start, end)):
                seen = self.contents[group.pool, table[position // size]].get(position % size)
                sequence.tainted |= seen == POISON
                right = seen == (index, sequence.hash_at(position))
                assert right or sequence.tainted, f"{sequence.request_id} reads wrong keys"
        for index, group in enumerate(self.layout.groups):
            for position in range(start, end):
                value = POISON if sequence.tainted else (index, sequence.hash_at(position))
                self._write(group, tables[index][position // group.block_size], position, value)


LAYERS = {
    "full": [
        LayerKV("a", FullAttention(1, 8, "float32")),
        LayerKV("b", FullAttention(1, 8, "float32")),
    ],
    "hybrid": [
        LayerKV("a", FullAttention(1, 8, "float32")),
        LayerKV("b", SlidingWindow(1, 8, "float32", window=6)),
        LayerKV("c", SlidingWindow(1, 8, "float32", window=6)),
    ],
    "three": [
        LayerKV("a", FullAttention(1, 64, "float32")),
        LayerKV("b", SlidingWindow(1, 32, "float32", window=7)),
        LayerKV("c", ChunkedLocal(1, 16, "float32", chunk=8)),
    ],
    "sizes": [
        LayerKV("a", FullAttention(1, 8, "float32", block_size=8)),
        LayerKV("b", SlidingWindow(1, 16, "float32", block_size=4, window=5)),
        LayerKV("c", ChunkedLocal(1, 16, "float32", block_size=4, chunk=12)),
    ],
    "windowed": [LayerKV("a", SlidingWindow(1, 8, "float32", window=5))],
    "states": [LayerKV("a", RecurrentState((((8,), "float32"),), block_size=4, spare=6))],
    "bare states": [LayerKV("a", RecurrentState((((8,), "float32"),), block_size=4))],
    "stateful": [
        LayerKV("a", FullAttention(1, 8, "float32")),
        LayerKV("b", SlidingWindow(1, 8, "float32", window=6)),
        LayerKV(
            "c", RecurrentState((((3, 8), "float32"), ((8, 8), "float32")), block_size=6, spare=5)
        ),
    ],
    "none": [],
}


def make_request(
    request_id: str, prompt: list[int], max_tokens: int = 8, **fields: Any
) -> EngineRequest:
    sampling = fields.pop("sampling", None) or SamplingParams(max_tokens=max_tokens)
    eos = fields.pop("eos_token_ids", (EOS,))
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=prompt,
        sampling=sampling,
        seed=0,
        max_tokens=max_tokens,
        eos_token_ids=eos,
        **fields,
    )


class Engine:
    """Scheduler and fake worker, stepped together and checked after every call."""

    def __init__(
        self,
        layers: str = "full",
        *,
        block_size: int = 4,
        num_blocks: int = 64,
        budget: int = 16,
        max_num_seqs: int = 4,
        max_model_len: int = 64,
        depth: int = 1,
        prefix_caching: bool = True,
        policy: Any = None,
        extensions: Any = (),
        needed_len: int | None = None,
        **limits: Any,
    ) -> None:
        self.layout = plan_layout(
            LAYERS[layers],
            block_size=block_size,
            memory_bytes=0,
            num_blocks=num_blocks,
            max_model_len=needed_len or 1,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget,
        )
        self.kv = KVManager(self.layout, prefix_caching=prefix_caching, identity="fake")
        self.limits = SchedulerLimits(budget, max_num_seqs, max_model_len, **limits)
        self.scheduler: Any = Scheduler(
            self.limits, self.kv, policy=policy, extensions=extensions, depth=depth
        )
        self.worker = FakeWorker(self.layout, max_num_seqs, budget)
        self.requests: dict[str, EngineRequest] = {}
        self.outputs: dict[str, list[int]] = {}
        self.finished: dict[str, RequestDelta] = {}
        self.started: list[str] = []
        self.plans: list[StepPlan] = []
        self.journal: Any = None
        self.clock = 0.0

    def record(self, path: str) -> None:
        """Record every call from now on."""
        self.scheduler = self.journal = Journal(path, self.scheduler, self._tick)

    def _tick(self) -> float:
        self.clock += 1
        return self.clock

    def add(self, request_id: str, prompt: list[int], max_tokens: int = 8, **fields: Any) -> bool:
        """Queue a request; False if it was rejected."""
        request = make_request(request_id, prompt, max_tokens, **fields)
        try:
            self.scheduler.add(request)
        except InvalidRequest:
            check_scheduler(self.scheduler)
            return False
        self.worker.salts[request_id] = request.cache_salt
        self.requests[request_id] = request
        self.outputs[request_id] = []
        check_scheduler(self.scheduler)
        return True

    def abort(self, request_id: str) -> RequestDelta | None:
        delta = self.scheduler.abort(request_id)
        if delta is not None:
            self._take([delta])
        check_scheduler(self.scheduler)
        return delta

    def wake(self, request_id: str) -> None:
        self.scheduler.wake(request_id)
        check_scheduler(self.scheduler)

    def recompute(self, request_id: str, position: int) -> None:
        """Invalidate what the request has cached from a position on."""
        self.scheduler.recompute(request_id, position)
        check_scheduler(self.scheduler)

    def tokens(self, request_id: str) -> list[int]:
        request = self.requests[request_id]
        given = [*request.prompt_token_ids, *request.output_token_ids]
        return given + self.outputs[request_id]

    def schedule(self) -> StepPlan | None:
        plan = self.scheduler.schedule()
        check_scheduler(self.scheduler)
        if plan is not None:
            self.plans.append(plan)
            self.started += [new.request_id for new in plan.new]
            self.worker.submit(plan)
            self._check_prefill(plan)
        return plan

    def _check_prefill(self, plan: StepPlan) -> None:
        limit = self.limits.max_mixed_prefill_tokens
        if not (limit and plan.decode_rows and self.limits.chunked_prefill):
            return
        num_new = 0
        for row, count in zip(plan.rows, plan.counts, strict=True):
            request = self.requests[self.worker.sequence(row).request_id]
            if request.output_token_ids or self.outputs[request.request_id]:
                assert count <= limit, "a resumed request computes more than its limit"
            else:
                num_new += count
        assert num_new <= limit, "new requests compute more than their limit"

    def collect(self) -> None:
        result = self.worker.collect()
        deltas = self.scheduler.update(result)
        self._take(deltas)
        check_scheduler(self.scheduler)

    def fail_steps(self) -> None:
        self.worker.fail_steps()
        self._take(self.scheduler.fail_in_flight("the device is gone"))
        check_scheduler(self.scheduler)

    def _take(self, deltas: Iterable[RequestDelta]) -> None:
        for delta in deltas:
            assert delta.request_id not in self.finished, "a request has a delta after its end"
            self.outputs[delta.request_id] += delta.token_ids
            if delta.finish_reason is not None:
                self.finished[delta.request_id] = delta

    def step(self) -> None:
        while self.schedule() is not None:
            pass
        if self.worker.queue:
            self.collect()

    def run(self, max_steps: int = 10_000) -> None:
        """Step until all requests have ended."""
        for _ in range(max_steps):
            if not self.scheduler.has_work:
                break
            self.step()
        assert not self.scheduler.has_work, "the engine does not come to an end"

    def check_outputs(self) -> None:
        """Assert that ended requests have their tokens alone, and aborted ones a prefix of them."""
        for request_id, delta in self.finished.items():
            request = self.requests[request_id]
            expected = expected_output(request, self.limits.max_model_len, request.cache_salt)
            output = [*request.output_token_ids, *self.outputs[request_id]]
            if delta.finish_reason in ("abort", "error"):
                assert output == expected[: len(output)]
            else:
                assert output == expected
                assert delta.finish_reason == (
                    "stop" if output[-1] in request.eos_token_ids else "length"
                )

    def check_idle(self) -> None:
        """Assert that no block, row or queue entry is held."""
        assert self.scheduler.kv.usage == 0
        assert self.scheduler.num_running == self.scheduler.num_waiting == 0


def in_order(items: list[Any], *expected: Any) -> bool:
    """Return whether the expected items first occur in this order."""
    return all(items.index(a) < items.index(b) for a, b in pairwise(expected))
