"""What the demo model says without guesses."""

from __future__ import annotations

from typing import Any

import pytest
from mixed_requests import open_llm, run


@pytest.fixture(scope="session")
def expected() -> list[Any]:
    """Return what every request is answered with."""
    with open_llm(None) as llm:
        return run(llm)
