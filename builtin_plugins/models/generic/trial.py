"""Four forward passes of three tokens, after loading: what each attention call needs, and whether
nothing else mixes.

In all of them attention passes on each token's own query, key and value. The first leaves positions
to transformers; masks are markers that keep the formula it would make a mask of, and each call of
attention is written down. In the second we count positions, from zero or behind that of padding,
and nothing may change. In the third all tokens have one position: two equal tokens must come out
equal, whatever stands between them. In the fourth a cache claims to hold many tokens, which must
change nothing. A convolution, a running state, or positions that the model counts by itself would
show, so what passes is served exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import torch
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache

from builtin_plugins.models.generic.attention import ATTRIBUTE, PagedLayer
from core.api import (
    AttentionParams,
    ChunkedLocal,
    FullAttention,
    KVSpec,
    LayerKV,
    ModelError,
    SlidingWindow,
)

TRIAL: Final = "engine_trial"
TOKENS: Final = (1, 2, 1)
FAR: Final = 1 << 17
"""A position behind every window; a window that is longer would never be full."""
WITHOUT_MEANING: Final = frozenset(
    (
        "dropout",
        "sliding_window",
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
    )
)
"""What layers say besides that changes nothing here: there is no dropout, and a window stands in
the mask as well.
"""
TOLERANCE: Final = 1e-2


@dataclass(frozen=True, slots=True)
class Marker:
    """Stands where a mask would be."""

    sees: Callable[..., torch.Tensor]
    """(batch, head, query position, key position) to whether the key is seen."""

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_use()

    @classmethod
    def __torch_function__(cls, *_: object) -> NoReturn:
        """Refuse to be an operand, which only the mask itself could be."""
        _refuse_use()


def _refuse_use() -> NoReturn:
    raise ModelError("its layers make something of their own of the mask.")


@dataclass(slots=True)
class Call:
    """One call of attention."""

    module: torch.nn.Module
    heads: int
    kv_heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype
    mask: object
    said: dict[str, Any]


@dataclass(slots=True)
class Record:
    """The attention calls of one forward pass."""

    calls: list[Call] = field(default_factory=list)


def register() -> None:
    """Make the trial's attention and its masks known to transformers. Safe to call again."""
    AttentionInterface.register(TRIAL, _pass_through)
    AttentionMaskInterface.register(TRIAL, _mark)


def attention_calls(
    run: Callable[..., torch.Tensor], model: torch.nn.Module, cache: DynamicCache | None = None
) -> tuple[list[Call], torch.Tensor]:
    """Return the attention calls of a forward pass, and its hidden states."""
    notes = Record()
    for module in model.modules():
        setattr(module, ATTRIBUTE, notes)
    hidden = run(torch.tensor(TOKENS), None, cache)
    if not notes.calls:
        raise ModelError("its attention does not go through transformers' attention interface.")
    return notes.calls, hidden


def sketched_calls(run: Callable[..., torch.Tensor], model: torch.nn.Module) -> list[Call]:
    """Return the attention calls of a model without memory: with a cache, transformers looks at no
    value.
    """
    return attention_calls(run, model, _Long())[0]


def record(
    run: Callable[..., torch.Tensor], model: torch.nn.Module, starts: Sequence[int]
) -> tuple[int, list[Call]]:
    """Return the position of a text's first token, one of `starts`, and the attention calls of a
    forward pass.

    `run` is given token ids, positions and perhaps a cache. Raises `ModelError` where more than
    attention carries something from one token to another.
    """
    tokens = torch.tensor(TOKENS)
    counted = torch.arange(len(TOKENS))
    noted, hidden = attention_calls(run, model)
    calls = list(noted)
    first = next((start for start in starts if _near(hidden, run(tokens, counted + start))), None)
    if first is None:
        raise ModelError(f"its positions count from neither of {', '.join(map(str, starts))}.")
    noted.clear()
    alike = run(tokens, torch.full_like(tokens, first + 5))
    if not _near(alike[0], alike[2]):
        raise ModelError(
            "a token changes what follows other than through attention (a convolution, a running "
            "state, or positions "
            "that the model counts by itself), which a paged cache cannot hold."
        )
    if not _near(hidden, run(tokens, counted + first, _Long())):
        raise ModelError("it counts tokens in a cache of its own, and is not told of ours.")
    if len(noted) != 2 * len(calls):
        raise ModelError("which attention layers it calls depends on its input.")
    return first, calls


class _Long(DynamicCache):
    """A cache that holds nothing and claims to be long."""

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return a length at which everything that depends on it has changed."""
        del layer_idx
        return FAR

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Return what masks are made with: nothing came before."""
        del layer_idx
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many keys there are, and the first one's place."""
        del layer_idx
        return query_length, 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keep nothing."""
        return key_states, value_states


def _near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).abs().max() <= TOLERANCE * one.abs().max())


def paged_layer(index: int, call: Call) -> PagedLayer:
    """Return what the engine must know of one call.

    Raises `ModelError` where it asks for more than there is.
    """
    said = {
        name: value
        for name, value in call.said.items()
        if value is not None and name not in WITHOUT_MEANING
    }
    scale = said.pop("scaling", None)
    softcap = said.pop("softcap", None)
    sinks = said.pop("s_aux", None)
    causal = said.pop("is_causal", getattr(call.module, "is_causal", True))
    if said:
        raise ModelError(f"its attention takes {', '.join(sorted(said))}, which is not served.")
    if not causal or not isinstance(call.mask, Marker):
        raise ModelError("its attention looks ahead, or has a mask of its own making.")
    window, chunk = reach(call.mask)
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
    dtype = str(call.dtype).removeprefix("torch.")
    kv: KVSpec = FullAttention(call.kv_heads, size, dtype)
    if window is not None:
        kv = SlidingWindow(call.kv_heads, size, dtype, window=window)
    elif chunk is not None:
        kv = ChunkedLocal(call.kv_heads, size, dtype, chunk=chunk)
    return PagedLayer(params, LayerKV(f"attention.{index}", kv), call.value_size)


def reach(marker: Marker) -> tuple[int | None, int | None]:
    """Return window and chunk of a mask; neither: all earlier tokens.

    Raises `ModelError` for any other form.
    """
    keys = torch.arange(2 * FAR)
    seen = [_seen(marker, position, keys) for position in (FAR, FAR + 1)]
    first = [int(row.int().argmax()) for row in seen]
    for position, row, start in zip((FAR, FAR + 1), seen, first, strict=True):
        if not torch.equal(row, (keys >= start) & (keys <= position)):
            raise ModelError(
                "its attention has a mask that is neither causal nor a window nor chunks."
            )
    if first == [0, 0]:
        return None, None
    if first[1] == first[0] + 1:
        return FAR - first[0] + 1, None
    return None, _chunk(marker, first[1], keys)


def _chunk(marker: Marker, start: int, keys: torch.Tensor) -> int:
    """Return the length of chunks, one of which begins at `start`."""
    before = _seen(marker, start - 1, keys)
    size = start - int(before.int().argmax())
    for position in (start, start + size - 1, start + size):
        expected = (keys >= position // size * size) & (keys <= position)
        if not torch.equal(_seen(marker, position, keys), expected):
            raise ModelError(
                "its attention has a mask that is neither causal nor a window nor chunks."
            )
    return size


def _seen(marker: Marker, position: int, keys: torch.Tensor) -> torch.Tensor:
    """Return which keys the query at a position sees."""
    zero = torch.tensor(0)
    try:
        return torch.as_tensor(marker.sees(zero, zero, torch.tensor(position), keys)).expand(
            keys.shape
        )
    except IndexError as error:
        raise ModelError("its attention has a mask that depends on more than positions.") from error


def _pass_through(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    **said: Any,
) -> tuple[torch.Tensor, None]:
    """Write a call down and return a mixture of each token's own query, key and value."""
    notes: Record = getattr(module, ATTRIBUTE)
    heads = query.shape[1]
    kv_heads = key.shape[1]
    notes.calls.append(
        Call(
            module,
            heads,
            kv_heads,
            key.shape[-1],
            value.shape[-1],
            value.dtype,
            attention_mask,
            said,
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
    """Return one number for each token and head [1, heads, num_tokens, 1]; turning a vector changes
    it.
    """
    weights = torch.arange(part.shape[-1], device=part.device).cos().to(part.dtype)
    return (part @ weights)[..., None].tanh()


def _mark(*, mask_function: Callable[..., torch.Tensor], **_: Any) -> Marker:
    """Keep the formula instead of making a mask of it."""
    return Marker(mask_function)
