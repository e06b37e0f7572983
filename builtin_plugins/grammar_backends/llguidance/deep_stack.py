"""Calls with a large stack: the library recurses into each rule that another rule uses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

_FEW_RULES: Final = 200
"""Number of rules for which any stack is large enough."""
_BYTES_PER_RULE: Final = 4096
"""Stack of one recursion; 3300 bytes were measured."""
_BASE_BYTES: Final = 1 << 20

Result = TypeVar("Result")


def with_deep_stack(call: Callable[[], Result], num_rules: int) -> Result:
    """Return the result of a function that recurses at each rule of a grammar.

    Raises `MemoryError` if there is no memory for the stack.
    """
    if num_rules <= _FEW_RULES:
        return call()
    before = threading.stack_size(_BASE_BYTES + _BYTES_PER_RULE * num_rules)
    try:
        pool = ThreadPoolExecutor(1)
        future = pool.submit(call)
    except RuntimeError as error:
        raise MemoryError(str(error)) from error
    finally:
        threading.stack_size(before)
    with pool:
        return future.result()
