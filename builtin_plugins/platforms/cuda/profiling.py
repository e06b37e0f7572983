"""The largest step that a scheduler may plan, on a cache of two blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from core.api import ConfigError, EngineConfig, SamplingParams
from core.api.execution import NewRow, StepPlan, WorkerInfo
from core.api.planning import fit_memory
from core.model_spec.kv import KVLayout, LayerKV

BLOCK: Final = 1
"""Block of all tokens; block 0 is the null block."""
UNLIMITED: Final = 1 << 62
"""Bytes that hold every context."""
SAMPLING: Final = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01)
"""Sampling with all truncations, which need copies of the logits."""


def smallest_layout(config: EngineConfig, layers: Sequence[LayerKV]) -> KVLayout:
    """Return the layout of a cache with one block per pool next to the null block."""
    info = WorkerInfo(layers=list(layers), kv_memory_bytes=UNLIMITED, vocab_size=0)
    _, layout = fit_memory(config, info, cut_context=False)
    return replace(layout, pools=[replace(pool, num_blocks=BLOCK + 1) for pool in layout.pools])


def largest_step(config: EngineConfig, layout: KVLayout) -> StepPlan:
    """Return a step with the largest number of tokens, of sampling rows that divide them."""
    scheduler = config.scheduler
    longest = max(1, (config.model.max_model_len or 2) - 1)  # and the sampled token
    tokens = scheduler.max_num_batched_tokens or longest
    rows = min(scheduler.max_num_seqs or 1, tokens)
    each, more = divmod(min(tokens, rows * longest), rows)
    counts = [each + (row < more) for row in range(rows)]
    new = [
        NewRow(
            row=row,
            request_id=f"profile-{row}",
            token_ids=[0] * count,
            prompt_len=count,
            sampling=SAMPLING,
            seed=row,
            eos_token_ids=(),
            blocks=[[BLOCK] * -(-(count + 1) // group.block_size) for group in layout.groups],
        )
        for row, count in enumerate(counts)
    ]
    indices = list(range(rows))
    return StepPlan(-1, [], new, [], indices, [0] * rows, counts, indices)


def too_large(config: EngineConfig) -> ConfigError:
    """Return the error of a step that the device has no memory for."""
    scheduler = config.scheduler
    return ConfigError(
        f"--max-num-batched-tokens: got {scheduler.max_num_batched_tokens}; expected a step that "
        f"fits the device next to the weights, with {scheduler.max_num_seqs} rows (--max-num-seqs)."
        " Lower one of them."
    )
