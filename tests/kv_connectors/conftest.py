"""What all tests of connectors compare with."""

from __future__ import annotations

import pytest

from tests.kv_connectors.trial import Tokens, alone


@pytest.fixture(scope="session")
def expected() -> Tokens:
    """The tokens without a connector."""
    return alone()
