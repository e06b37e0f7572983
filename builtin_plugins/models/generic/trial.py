"""The trial after loading: four forward passes of three tokens that find what attention needs.

In all passes attention returns a mixture of each token's own query, key and value, so no other
token may change the result:

1. transformers counts positions. Each attention call is recorded, with its mask as a formula.
2. We count positions, from zero or after the padding position. The result must be equal.
3. All tokens have one position. Two equal tokens must give equal results.
4. A cache claims to be long. The result must be equal.

A convolution, a recurrent state or positions counted by the model would change a result, so a
model that passes is served exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache

from builtin_plugins.models.generic.attention import ATTRIBUTE, PagedLayer
from builtin_plugins.models.generic.key_bias import with_bias
from core.api import ModelError
from core.model_spec.attention_params import AttentionParams
from core.model_spec.kv import ChunkedLocal, FullAttention, KVSpec, LayerKV, SlidingWindow
from core.models.dtypes import dtype_name

TRIAL: Final = "engine_trial"
TOKENS: Final = (1, 2, 1)
FAR: Final = 1 << 17
"""A position beyond every window."""
IGNORED_ARGUMENTS: Final = frozenset(
    (
        "dropout",
        "sliding_window",
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
    )
)
"""Arguments of attention calls without effect here: no dropout, and the mask has the window."""
TOLERANCE: Final = 1e-2


@dataclass(frozen=True, slots=True)
class Marker:
    """Replaces an attention mask by its formula."""

    formula: Callable[..., torch.Tensor]
    """(batch, head, query position, key position) to whether the query attends to the key."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_use()

    @classmethod
    def __torch_function__(cls, *_: object) -> NoReturn:
        """Reject every operation: only a real mask is an operand."""
        _refuse_use()


def _refuse_use() -> NoReturn:
    raise ModelError("its layers compute with the attention mask.")


@dataclass(slots=True)
class Call:
    """One attention call."""

    module: torch.nn.Module
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    mask: object
    arguments: dict[str, Any]


@dataclass(slots=True)
class Record:
    """The attention calls of one forward pass."""

    calls: list[Call] = field(default_factory=list)


def register() -> None:
    """Register the trial's attention and masks in transformers. Idempotent."""
    AttentionInterface.register(TRIAL, _pass_through)
    AttentionMaskInterface.register(TRIAL, _mark)


def attention_calls(
    run: Callable[..., torch.Tensor], model: torch.nn.Module, cache: DynamicCache | None = None
) -> tuple[list[Call], torch.Tensor]:
    """Return the attention calls and hidden states of a forward pass."""
    record = Record()
    for module in model.modules():
        setattr(module, ATTRIBUTE, record)
    hidden = run(torch.tensor(TOKENS), None, cache)
    if not record.calls:
        raise ModelError("its attention does not use transformers' attention interface.")
    return record.calls, hidden


def attention_calls_on_meta(run: Callable[..., torch.Tensor], model: torch.nn.Module) -> list[Call]:
    """Return the attention calls of a model on the meta device.

    With a cache, transformers does not read any value.
    """
    return attention_calls(run, model, _LongCache())[0]


def record(
    run: Callable[..., torch.Tensor], model: torch.nn.Module, starts: Sequence[int]
) -> tuple[int, list[Call]]:
    """Return the position of a text's first token (one of `starts`) and the attention calls.

    `run` gets token ids, positions and optionally a cache. Raises `ModelError` if anything but
    attention passes information between tokens.
    """
    tokens = torch.tensor(TOKENS)
    counted = torch.arange(len(TOKENS))
    recorded, hidden = attention_calls(run, model)
    calls = list(recorded)
    first = next((start for start in starts if _near(hidden, run(tokens, counted + start))), None)
    if first is None:
        raise ModelError(f"its positions start at none of {', '.join(map(str, starts))}.")
    recorded.clear()
    equal_positions = run(tokens, torch.full_like(tokens, first + 5))
    if not _near(equal_positions[0], equal_positions[2]):
        raise ModelError(
            "a token changes later ones other than through attention (a convolution, a recurrent "
            "state, or positions counted by the model), which a paged cache does not support."
        )
    if not _near(hidden, run(tokens, counted + first, _LongCache())):
        raise ModelError("it counts the tokens of its own cache, which is not used here.")
    if len(recorded) != 2 * len(calls):
        raise ModelError("which attention layers it calls depends on its input.")
    return first, calls


class _LongCache(DynamicCache):
    """An empty cache that claims to be long."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return a length beyond every threshold."""
        del layer_idx
        return FAR

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return 0: masks are made without earlier tokens."""
        del layer_idx
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return the number of keys and the first key's index."""
        del layer_idx
        return query_length, 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store nothing."""
        return key_states, value_states


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE * one.abs().max())


def paged_layer(index: int, call: Call) -> PagedLayer:
    """Return the attention parameters and cache spec of one call.

    Raises `ModelError` for unsupported attention arguments.
    """
    arguments = {
        name: value
        for name, value in call.arguments.items()
        if value is not None and name not in IGNORED_ARGUMENTS
    }
    scale = arguments.pop("scaling", None)
    softcap = arguments.pop("softcap", None)
    sinks = arguments.pop("s_aux", None)
    causal = arguments.pop("is_causal", getattr(call.module, "is_causal", True))
    if arguments:
        raise ModelError(
            f"its attention has unsupported arguments: {', '.join(sorted(arguments))}."
        )
    if not causal or not isinstance(call.mask, Marker):
        raise ModelError("its attention is not causal or has a custom mask.")
    window, chunk = mask_limits(call.mask)
    size = max(call.key_size, call.value_size)
    params = AttentionParams(
        heads=call.heads,
        kv_heads=call.kv_heads,
        head_size=size,
        scale=call.key_size**-0.5 if scale is None else float(scale),
        window=window,
        chunk=chunk,
        softcap=softcap,
        sinks=sinks,
    )
    dtype = dtype_name(call.dtype)
    kv: KVSpec = FullAttention(call.kv_heads, size, dtype)
    if window is not None:
        kv = SlidingWindow(call.kv_heads, size, dtype, window=window)
    elif chunk is not None:
        kv = ChunkedLocal(call.kv_heads, size, dtype, chunk=chunk)
    return PagedLayer(params, LayerKV(f"attention.{index}", kv), call.value_size)


def mask_limits(marker: Marker) -> tuple[int | None, int | None]:
    """Return window and chunk of a mask; both None for full causal attention.

    Raises `ModelError` for any other form.
    """
    keys = torch.arange(2 * FAR)
    rows = [_visible_keys(marker, position, keys) for position in (FAR, FAR + 1)]
    first = [int(row.int().argmax()) for row in rows]
    for position, row, start in zip((FAR, FAR + 1), rows, first, strict=True):
        _expect(row, (keys >= start) & (keys <= position))
    if first == [0, 0]:
        return None, None
    if first[1] == first[0] + 1:
        return FAR - first[0] + 1, None
    return None, _chunk(marker, first[1], keys)


def _chunk(marker: Marker, start: int, keys: torch.Tensor) -> int:
    """Return the chunk size; a chunk begins at `start`."""
    last_chunk = _visible_keys(marker, start - 1, keys)
    size = start - int(last_chunk.int().argmax())
    for position in (start, start + size - 1, start + size):
        expected = (keys >= position // size * size) & (keys <= position)
        _expect(_visible_keys(marker, position, keys), expected)
    return size


def _expect(row: torch.Tensor, expected: torch.Tensor) -> None:
    if not torch.equal(row, expected):
        raise ModelError("its attention mask is neither causal nor a sliding window nor chunks.")


def _visible_keys(marker: Marker, position: int, keys: torch.Tensor) -> torch.Tensor:
    """Return a mask of the keys that the query at a position attends to."""
    zero = torch.tensor(0)
    try:
        return torch.as_tensor(marker.formula(zero, zero, torch.tensor(position), keys)).expand(
            keys.shape
        )
    except IndexError as error:
        raise ModelError("its attention mask depends on more than positions.") from error


def _pass_through(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Record a call and return a mixture of each token's own query, key and value."""
    record: Record = getattr(module, ATTRIBUTE)
    query, key, attention_mask = with_bias(
        module, query, key, attention_mask, arguments.get("scaling")
    )
    heads = query.shape[1]
    kv_heads = key.shape[1]
    record.calls.append(
        Call(
            module,
            heads,
            kv_heads,
            key.shape[-1],
            value.shape[-1],
            value.dtype,
            attention_mask,
            arguments,
        )
    )
    own = _digest(value) + _digest(key)
    out = (own.repeat_interleave(heads // kv_heads, dim=1) + _digest(query)).expand(
        *query.shape[:3], value.shape[-1]
    )
    return (out * value.new_ones(()).expand(value.shape[-1]).cumsum(0).cos()).transpose(
        1, 2
    ).contiguous(), None


def _digest(part: torch.Tensor) -> torch.Tensor:
    """Return one number per token and head [1, heads, num_tokens, 1], which depends on rotation."""
    weights = torch.arange(part.shape[-1], device=part.device).cos().to(part.dtype)
    return (part @ weights)[..., None].tanh()


def _mark(*, mask_function: Callable[..., torch.Tensor], **_: Any) -> Marker:
    """Return the mask function instead of a mask."""
    return Marker(mask_function)
