"""What the model computes, as functions of tensors: compiled, each is few passes over memory, which
is what a small
model costs on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from examples.demo_model.layout import IGNORED


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x scaled to unit mean square over its last dimension, times the weight."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x turned by its position. x: [tokens, heads, head_dim]; cos, sin: [tokens, 1,
    head_dim]
    """
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def enter(
    x: Tensor,
    weight: Tensor,
    projections: tuple[Tensor, Tensor, Tensor],
    head_weights: tuple[Tensor, Tensor],
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> Tensor:
    """Return a layer's queries, keys and values. [tokens, heads + 2 key heads, head_dim]"""
    size = cos.shape[-1]
    counts = [projection.shape[0] // size for projection in projections]
    together = (
        norm(x, weight, eps) @ torch.cat([projection.to(x.dtype) for projection in projections]).T
    )
    q, k, v = torch.split(together.view(x.shape[0], sum(counts), size), counts, dim=1)
    turned = [
        rotate(norm(part, weight, eps), cos, sin)
        for part, weight in zip((q, k), head_weights, strict=True)
    ]
    return torch.cat([*turned, v], dim=1)


def attend(qkv: Tensor, unseen: Tensor, heads: int) -> Tensor:
    """Return attention over what is seen. qkv: [rows * length, heads + 2 key heads, head_dim],
    unseen: [rows, length,
    length]; returns [rows * length, heads * head_dim]"""
    rows, length, _ = unseen.shape
    key_heads = (qkv.shape[1] - heads) // 2
    split = torch.split(
        qkv.view(rows, length, -1, qkv.shape[2]).transpose(1, 2),
        [heads, key_heads, key_heads],
        dim=1,
    )
    mixed: Tensor = _Attended.apply(*split, unseen)  # type: ignore[no-untyped-call]
    return mixed.transpose(1, 2).reshape(rows * length, -1)


class _Attended(torch.autograd.Function):
    """Attention by plain products, with a faster gradient on CPUs than PyTorch's own."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, unseen: Tensor) -> Tensor:
        rows, heads, length, size = q.shape
        together = (
            rows,
            k.shape[1],
            heads // k.shape[1] * length,
            size,
        )  # the queries that share a key's head
        q = (q * size**-0.5).reshape(together)
        k = k.contiguous()
        v = v.contiguous()
        scores = (q @ k.transpose(2, 3)).float()
        scores.view(rows, heads, length, length).masked_fill_(unseen[:, None], float("-inf"))
        shares = torch.softmax(scores, dim=-1).to(v.dtype)
        ctx.save_for_backward(q, k, v, shares)
        return (shares @ v).view(rows, heads, length, size)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, shares = ctx.saved_tensors
        rows, heads, length, size = grad.shape
        grad = grad.reshape(q.shape)
        to_scores = torch._softmax_backward_data(grad @ v.transpose(2, 3), shares, -1, shares.dtype)
        to_q = (to_scores @ k).mul_(size**-0.5).view(rows, heads, length, size)
        return to_q, to_scores.transpose(2, 3) @ q, shares.transpose(2, 3) @ grad, None


def leave(
    x: Tensor,
    mixed: Tensor,
    output: Tensor,
    weight: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    eps: float,
) -> Tensor:
    """Return the stream after attention and the gated feed-forward."""
    x = x + mixed @ output.to(x.dtype).T
    opened, raised = (norm(x, weight, eps) @ torch.cat([gate.to(x.dtype), up.to(x.dtype)]).T).chunk(
        2, dim=-1
    )
    return x + (F.silu(opened) * raised) @ down.to(x.dtype).T


def loss(hidden: Tensor, embedding: Tensor, targets: Tensor) -> Tensor:
    """Return the summed loss of the next tokens. hidden: [tokens, hidden]"""
    return F.cross_entropy(
        (hidden @ embedding.to(hidden.dtype).T).float(),
        targets,
        ignore_index=IGNORED,
        reduction="sum",
    )


class Compute(NamedTuple):
    """The functions, as they are or compiled."""

    enter: Callable[..., Tensor] = enter
    leave: Callable[..., Tensor] = leave
    loss: Callable[..., Tensor] = loss


PLAIN: Final = Compute()


def compiled() -> Compute:
    """Return the functions compiled for batches of any size.

    Needs a C++ compiler; takes half a minute when first used.
    """
    return Compute(*(torch.compile(function, dynamic=True) for function in PLAIN))
