"""What every pooler must hold to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from builtin_plugins.poolers.contract import Pooler
from core.api import PoolingParams
from core.api.plugins import construct
from core.testing.conformance.examples import examples
from core.testing.no_readback import no_readback

if TYPE_CHECKING:
    from core.testing.conformance import Subject

CONTRACT = Pooler

SIZE = 8


def check_says_what_it_needs_and_gives(subject: Subject) -> None:
    """`needs_whole_prompt` and `per_token` are set."""
    for name in ("needs_whole_prompt", "per_token"):
        found = getattr(subject.target, name, None)
        assert isinstance(found, bool), (
            f"{subject.entry.name}: {name} is {found!r}; set it to True or False."
        )


def check_gives_vectors_of_the_same_size(subject: Subject) -> None:
    """Of one token and of many come finite vectors as wide as the hidden states, and one unless
    `per_token`.
    """
    pooler = _make(subject)
    for count in (1, 2, 7):
        hidden = torch.randn(count, SIZE, generator=torch.Generator().manual_seed(count))
        found = pooler.pool(hidden, list(range(count)), PoolingParams())
        shape = tuple(found.shape)
        assert len(shape) == 2, (
            f"{subject.entry.name}: of {count} tokens came {shape}; return [vectors, {SIZE}]."
        )
        assert shape[1] == SIZE, (
            f"{subject.entry.name}: vectors have {shape[1]} numbers, not {SIZE}."
        )
        assert pooler.per_token or shape[0] == 1, (
            f"{subject.entry.name}: {shape[0]} vectors came, not one."
        )
        assert found.isfinite().all(), f"{subject.entry.name}: a number is not finite."


def check_examples_are_pooled_as_they_say(subject: Subject) -> None:
    """Hidden states, token ids and the vectors that come of them."""
    form = "EXAMPLES = [([[1.0, 0.0], [0.0, 1.0]], [5, 6], [[0.5, 0.5]])]"
    for hidden, token_ids, vectors in examples(subject, form):
        found = _make(subject).pool(torch.tensor(hidden), token_ids, PoolingParams())
        same = found.shape == torch.tensor(vectors).shape and torch.allclose(
            found.float(), torch.tensor(vectors)
        )
        assert same, (
            f"{subject.entry.name}: {hidden} is pooled to {found.tolist()}, its example says "
            f"{vectors}."
        )


def check_reads_no_device_value_back(subject: Subject) -> None:
    """Hidden states stay on the device."""
    with no_readback():
        _make(subject).pool(torch.ones(5, SIZE), [1, 2, 3, 2, 1], PoolingParams(step_tag_id=2))


def check_needs_no_more_than_it_says(subject: Subject) -> None:
    """Without `whole`, the last token alone gives the same."""
    pooler = _make(subject)
    if pooler.needs_whole_prompt:
        return
    hidden = torch.randn(6, SIZE, generator=torch.Generator().manual_seed(0))
    found = [pooler.pool(part, list(range(6)), PoolingParams()) for part in (hidden, hidden[-1:])]
    assert torch.equal(*found), (
        f"{subject.entry.name}: earlier tokens change the result; set whole = True."
    )


def _make(subject: Subject) -> Pooler:
    pooler: Pooler = construct(subject.target, subject.config)
    return pooler
