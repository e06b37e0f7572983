"""The reference tokens of all connector tests."""

from __future__ import annotations

import pytest

from tests.builtin_plugins.kv_connectors.small_engines import Tokens, reference_tokens


@pytest.fixture(scope="session")
def expected() -> Tokens:
    """The tokens without a connector."""
    return reference_tokens()
