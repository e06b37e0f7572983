"""Rows of the batch with items, in the worker."""

from __future__ import annotations

from dataclasses import dataclass, field

from builtin_plugins.features.multimodal.messages import RequestItems
from builtin_plugins.features.multimodal.state_views import StateView
from core.api.execution import NewRow
from core.model_spec.tower import RopePositions


@dataclass(slots=True)
class ItemRow:
    """A row of the batch with items."""

    new: NewRow
    items: RequestItems
    rope: RopePositions | None
    views: list[StateView] = field(default_factory=list)
    """Encoder states that its tokens read, in a model with gated cross attention."""


@dataclass(frozen=True, slots=True)
class Segment:
    """The tokens of one row in a step, if the row has items."""

    row: ItemRow
    start: int
    """Position of the first one."""
    count: int
    token: int
    """Index of the first one in the step."""
