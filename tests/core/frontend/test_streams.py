"""Outputs and ends reach the readers' event loop, or nothing when that is closed."""

from __future__ import annotations

import asyncio

import pytest

from core.errors import EngineDead
from core.frontend.streams import OutputStreams
from core.step import RequestDelta, StepOutputs


def test_event_loop_that_closes_meanwhile_does_not_end_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = OutputStreams()
    loop = asyncio.new_event_loop()
    loop.close()
    monkeypatch.setattr(loop, "is_closed", lambda: False)  # it closes after that check
    streams._event_loop = loop
    for i in range(3):
        streams.deliver_soon(StepOutputs(deltas=[RequestDelta(request_id=str(i), token_ids=[1])]))
    streams.died_soon(EngineDead("ended"))
    assert not streams._undelivered
