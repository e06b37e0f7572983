"""The tokens of the demo model without speculation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builtin_plugins.speculators.mixed_requests import open_llm, run


@pytest.fixture(scope="session")
def expected() -> list[Any]:
    """Return all outputs."""
    with open_llm(None) as llm:
        return run(llm)
