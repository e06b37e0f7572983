"""Reference implementation of every op in plain torch, which all implementations are tested
against.

An implementation is a function with the same signature. Inputs may be strided (query and key are
views of one fused projection); only the last dimension is always contiguous. Leading dimensions may
be zero. An implementation may use any order of operations within the tolerance of its dtype, but
must not read values back to the host.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from core.models.ops.activations import (
    GATED,
    clamped,
    expert_activation,
    gelu_and_mul,
    gelu_tanh_and_mul,
    relu_and_mul,
    silu_and_mul,
    swiglu_clamped_and_mul,
)
from core.models.ops.experts import select_experts
from core.models.ops.sampling import Truncation, uniform

__all__ = [
    "GATED",
    "clamped",
    "expert_activation",
    "gelu_and_mul",
    "gelu_tanh_and_mul",
    "relu_and_mul",
    "select_experts",
    "silu_and_mul",
    "swiglu_clamped_and_mul",
]

Tensor = torch.Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float = 0.0) -> Tensor:
    """Return x / rms(x) * (weight + offset) over the last dimension, computed in float32, in x's
    dtype.
    """
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    scale = weight.float()
    return (wide * (scale + offset if offset else scale)).to(x.dtype)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(x + residual), x + residual); the sum is rounded to x's dtype first.

    An implementation may write the results into x and residual.
    """
    total = x + residual
    return rms_norm(total, weight, eps, offset), total


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Return (x - mean) / std * weight + bias over the last dimension."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """Return (layer_norm(x + residual), x + residual); the sum is rounded to x's dtype first."""
    total = x + residual
    return layer_norm(total, weight, bias, eps), total


def silu(x: Tensor) -> Tensor:
    """Return x * sigmoid(x)."""
    return F.silu(x)


def sigmoid(x: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-x))."""
    return torch.sigmoid(x)


def gelu(x: Tensor) -> Tensor:
    """Return the exact gelu of x."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return gelu of x in the tanh approximation."""
    return F.gelu(x, approximate="tanh")


def relu(x: Tensor) -> Tensor:
    """Return x where positive, else 0."""
    return F.relu(x)


def rotary(
    query: Tensor, key: Tensor, cos_sin: Tensor, positions: Tensor, interleaved: bool = False
) -> tuple[Tensor, Tensor]:
    """Return query [n, heads, size] and key [n, kv_heads, size] after RoPE.

    `cos_sin` is float32 [max_positions, rotary_size]: row p holds the cosines, then the sines, of
    the rotary_size / 2 angles of position p. `positions` is int64 [n]. The first rotary_size
    elements of each head are rotated, the others are unchanged. Pairs are (i, i + rotary_size / 2),
    or (2i, 2i + 1) when interleaved. Computed in float32. An implementation may modify query and
    key in place.
    """
    cos, sin = cos_sin[positions].unsqueeze(1).chunk(2, -1)  # [n, 1, rotary_size / 2] each
    return _rotate(query, cos, sin, interleaved), _rotate(key, cos, sin, interleaved)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    size = 2 * cos.shape[-1]
    rotated = x[..., :size].float()
    if interleaved:
        a = rotated[..., 0::2]
        b = rotated[..., 1::2]
        result = torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)
    else:
        a, b = rotated.chunk(2, -1)
        result = torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
    if size == x.shape[-1]:
        return result.to(x.dtype)
    return torch.cat((result.to(x.dtype), x[..., size:]), -1)


def latent_rows(
    query: Tensor,
    latent: Tensor,
    shared: Tensor,
    rope_query: Tensor,
    weight: Tensor,
    eps: float,
    offset: float,
    cos_sin: Tensor,
    positions: Tensor,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """Return keys [n, 1, rank + size], and the end of `query` [n, heads, rank + size], where it
    writes `rope_query` [n, heads, size] after RoPE.

    A key is the RMS norm of the latent [n, rank], then `shared` [n, size] after RoPE.
    """
    own = rms_norm(latent, weight, eps, offset)
    turned, end = rotary(rope_query, shared[:, None], cos_sin, positions, interleaved)
    query[..., latent.shape[1] :] = turned
    return torch.cat([own[:, None], end], -1), query[..., latent.shape[1] :]


def full_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    counts: Sequence[int],
    scale: float,
    window: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Return bidirectional attention [n, heads, size] of concatenated sequences.

    query is [n, heads, size], key and value [n, kv_heads, size], with `counts` tokens per sequence.
    `window`: a token attends to tokens less than `window` positions away. `bias` [heads, 2 * m - 1]
    is added to the scores by distance: column m - 1 + d is for keys d positions after the query; m
    is at least the longest sequence.
    """
    out = torch.empty_like(query)
    start = 0
    for count in counts:
        own = slice(start, start + count)
        mask = (
            None
            if bias is None and (window is None or window >= count)
            else _by_distance(query, count, window, bias)
        )
        q, k, v = (
            x[own].transpose(0, 1)[None] for x in (query, key, value)
        )  # [1, heads, count, size]
        grouped = query.shape[1] != key.shape[1]
        found = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped
        )
        out[own] = found[0].transpose(0, 1)
        start += count
    return out


def _by_distance(query: Tensor, count: int, window: int | None, bias: Tensor | None) -> Tensor:
    """Return the additive attention mask of a sequence, [heads or 1, count, count]."""
    positions = torch.arange(count, device=query.device)
    distance = positions[None] - positions[:, None]
    if bias is None:
        added = query.new_zeros(1, count, count)
    else:
        added = bias[:, distance + bias.shape[1] // 2].to(query.dtype)
    return added if window is None else added.masked_fill(distance.abs() >= window, float("-inf"))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias for weight [out, in]."""
    return F.linear(x, weight, bias)


def gated_linear(x: Tensor, weight: Tensor, activation: str, bias: Tensor | None = None) -> Tensor:
    """Return activation(gate) * up for [gate | up] = x @ weight.T + bias, weight [2 * width,
    hidden].
    """
    return GATED[activation](linear(x, weight, bias))


def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """Return the rows of weight [vocab, hidden] for int64 ids [n]."""
    return F.embedding(ids, weight)


def widen(x: Tensor) -> Tensor:
    """Return x [n, width] in float32."""
    return x.float()


def softcap(x: Tensor, cap: float) -> Tensor:
    """Return cap * tanh(x / cap)."""
    return torch.tanh(x / cap) * cap


def select_tokens(
    query: Tensor, weights: Tensor, keys: Tensor, table: Tensor, seen: Tensor, count: int
) -> Tensor:
    """Return the positions [n, count] with the highest scores, ascending; int32.

    The queries [n, heads, size] belong to one sequence. Its keys are in the blocks `table` int32 of
    `keys` [blocks, block_size, size]. Query i sees the first seen[i] keys. A score is the float32
    sum over heads of weights [n, heads] * relu(query . key); of equal ones the first are selected.
    """
    own = keys[table.long()].flatten(0, 1).float()
    scores = (weights[..., None] * F.relu(query.float() @ own.T)).sum(1)
    later = torch.arange(len(own), device=scores.device) >= seen[:, None]
    order = scores.masked_fill(later, float("-inf")).argsort(dim=1, stable=True, descending=True)
    return order[:, :count].sort(1).values.int()


def moe(
    x: Tensor,
    gate_up: Tensor,
    down: Tensor,
    weights: Tensor,
    experts: Tensor,
    activation: str = "silu",
    bias: Tensor | None = None,
) -> Tensor:
    """Return the weighted sum of each token's chosen experts, for x [n, hidden].

    `gate_up` is [num_experts, 2 * width, hidden] (gate rows, then up rows), `down` [num_experts,
    hidden, width]. `experts` int64 [n, k] are the chosen experts and `weights` [n, k] their
    weights. `activation` is the gated op without `_and_mul`; with the suffix `_alone` experts have
    no gate and `gate_up` has half the rows. `bias` [num_experts, 2 * width] is added before the
    activation. An expert `num_experts` is another rank's and adds nothing. The reference runs every
    expert on every token; implementations run only the chosen ones.
    """
    act = expert_activation(activation)
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for index in range(gate_up.shape[0]):
        share = (weights.float() * (experts == index)).sum(-1, keepdim=True)  # [n, 1]
        inner = F.linear(x, gate_up[index], None if bias is None else bias[index])
        out += share * F.linear(act(inner), down[index]).float()
    return out.to(x.dtype)


def best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest logit and its token per row of logits [n, vocab], [n] each.

    Ties return the lowest index; NaN counts as the largest value.
    """
    tokens = logits.argmax(dim=-1)
    return logits.gather(1, tokens[:, None])[:, 0], tokens


def truncate(logits: Tensor, truncation: Truncation) -> Tensor:
    """Return logits [n, vocab] with tokens outside each row's top-k and top-p at -inf.

    Top-k first: the k best tokens remain (`truncation.top_k`, 0: all), with ties of the last one.
    Then top-p: the best tokens with a total probability of `truncation.top_p` remain, with ties of
    the last one, and at least one token. A row's result must not depend on other rows. An
    implementation may modify its argument.
    """
    vocab = logits.shape[-1]
    ordered = logits.sort(dim=-1, descending=True).values
    last = torch.where(truncation.top_k > 0, truncation.top_k, vocab).clamp(max=vocab)[:, None] - 1
    logits = logits.masked_fill(logits < ordered.gather(1, last), float("-inf"))
    ordered = ordered.masked_fill(torch.arange(vocab, device=logits.device) > last, float("-inf"))
    weights = ordered.softmax(dim=-1).double()
    before = weights.cumsum(dim=-1) - weights
    needed = (before < weights.sum(dim=-1, keepdim=True) * truncation.top_p[:, None]).sum(
        dim=-1, keepdim=True
    )
    needed = torch.where(truncation.top_p[:, None] < 1, needed.clamp(min=1), vocab)
    return logits.masked_fill(logits < ordered.gather(1, needed - 1), float("-inf"))


def draw(logits: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Return one sampled token per row, [n] int64, from final logits [n, vocab].

    Excluded tokens are at -inf. The result is the first token, in vocabulary order, with a
    cumulative probability above `uniform(seeds, positions)`; if rounding selects an excluded token,
    the most likely one. `seeds` and `positions` (of the sampled tokens) are [n] int64.
    """
    weights = logits.softmax(dim=-1)
    ends = weights.cumsum(dim=-1, dtype=torch.float64)
    target = uniform(seeds, positions)[:, None] * ends[:, -1:]
    tokens = torch.searchsorted(ends, target, right=True).clamp(max=logits.shape[-1] - 1)
    return torch.where(weights.gather(1, tokens) > 0, tokens, logits.argmax(dim=-1, keepdim=True))[
        :, 0
    ]


def causal_conv(
    x: Tensor,
    state: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    activate: bool = True,
    dilation: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return the causal convolution of each channel, and the last `(kernel - 1) * dilation` inputs.

    x is [n, length, channels]: n segments of sequences. `state` [n, (kernel - 1) * dilation,
    channels] holds the inputs before each segment. `weight` is [kernel, channels], with the newest
    token last; its rows are `dilation` tokens apart. Computed in float32 and returned in x's dtype.
    `activate`: apply SiLU.
    """
    length = x.shape[1]
    kernel = weight.shape[0]
    seen = torch.cat((state.to(x.dtype), x), dim=1)
    out = seen[:, :length].float() * weight[0].float()
    for index in range(1, kernel):
        offset = index * dilation
        out.addcmul_(seen[:, offset : offset + length].float(), weight[index].float())
    if bias is not None:
        out += bias.float()
    return (F.silu(out) if activate else out).to(x.dtype), seen[:, length:]


def ssd_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the Mamba 2 scan of each token, and the final states, in float32.

    For each head: state = state * exp(step * decay) + step * x (outer) write; out = state @ read. x
    is [n, length, heads, head_size], `step` [n, length, heads], `decay` [heads] below zero, `write`
    and `read` [n, length, groups, state_size], `state` [n, heads, head_size, state_size].
    """
    each = x.shape[2] // write.shape[2]
    write, read = (part.float().repeat_interleave(each, 2) for part in (write, read))
    state = state.float()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for token in range(x.shape[1]):
        move = step[:, token].float()[..., None]  # [n, heads, 1]
        moved = (x[:, token].float() * move)[..., None] * write[:, token, :, None]
        state = state * (move * decay.float()[:, None]).exp()[..., None] + moved
        out[:, token] = (state * read[:, token, :, None]).sum(-1)
    return out, state


def selective_scan(
    x: Tensor, step: Tensor, decay: Tensor, write: Tensor, read: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the Mamba selective scan of each token, and the final states, in float32.

    For each channel: state = state * exp(step * decay) + step * x * write; out = state . read. x
    and `step` are [n, length, channels], `decay` [channels, state_size] below zero, `write` and
    `read` [n, length, state_size], `state` [n, channels, state_size].
    """
    state = state.float()
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for token in range(x.shape[1]):
        move = step[:, token].float()[..., None]  # [n, channels, 1]
        state = (
            state * (move * decay.float()).exp()
            + move * x[:, token].float()[..., None] * write[:, token, None]
        )
        out[:, token] = (state * read[:, token, None].float()).sum(-1)
    return out, state


L2_EPS = 1e-6


def l2_normalized(query: Tensor, key: Tensor, query_scale: float | None) -> tuple[Tensor, Tensor]:
    """Return query and key of length 1 in float32, the query scaled; with None as they are."""
    if query_scale is None:
        return query, key
    lengths = (part.float().square().sum(-1, keepdim=True) + L2_EPS for part in (query, key))
    query_length, key_length = (torch.rsqrt(length) for length in lengths)
    return query.float() * query_length * query_scale, key.float() * key_length


def delta_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    write: Tensor,
    state: Tensor,
    query_scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the gated delta rule of each token, and the final states, in float32.

    For each head: state = state * exp(decay); state = state + key (outer) write * (value - key @
    state); out = query @ state. query and key are [n, length, key_heads, key_size], each shared by
    consecutive heads of value [n, length, heads, value_size]; decay is not positive: [n, length,
    heads] or [n, length, heads, key_size], `write` [n, length, heads], `state` [n, heads, key_size,
    value_size]. `query_scale`: first normalise query and key to length 1, and scale the query;
    None: take them as they are.
    """
    each = value.shape[2] // key.shape[2]
    query, key = l2_normalized(query, key, query_scale)
    query, key = (part.float().repeat_interleave(each, 2) for part in (query, key))
    decay_factor = (
        (decay if decay.ndim == 4 else decay[..., None]).float().exp()[..., None]
    )  # [n, length, heads, key_size | 1, 1]
    state = state.float()
    out = torch.zeros(value.shape, dtype=torch.float32, device=value.device)
    for token in range(value.shape[1]):
        state = state * decay_factor[:, token]
        found = (state * key[:, token, ..., None]).sum(-2)
        error = (value[:, token].float() - found) * write[:, token, :, None].float()
        state = state + key[:, token, ..., None] * error[..., None, :]
        out[:, token] = (state * query[:, token, ..., None]).sum(-2)
    return out, state


def linear_recurrence(x: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return the linear recurrence of x [n, length, channels], and the final state, in float32.

    For each channel: state = state * exp(decay) + x; out = state. `decay` is not positive and has
    x's shape; `state` is [n, channels].
    """
    out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    state = state.float()
    for token in range(x.shape[1]):
        state = state * decay[:, token].float().exp() + x[:, token].float()
        out[:, token] = state
    return out, state
