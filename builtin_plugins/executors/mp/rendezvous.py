"""Where the ranks of an engine find each other."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def rendezvous(host: str) -> Iterator[str]:
    """Yield the place of `Join`: a private folder, or a store on this process's address `host`.

    It exists while the ranks load; afterwards they are connected to each other.
    """
    if not host:
        folder = tempfile.mkdtemp(prefix=f"engine-ranks-{os.getpid()}-")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    # Imported here: ranks of one machine need no torch in this process.
    from core.models.layers.parallel import TcpStore

    store = TcpStore(host)
    try:
        yield store.place
    finally:
        store.close()
