"""Standard streams that are closed must not keep a server from serving."""

from __future__ import annotations

import os


def mend_streams() -> None:
    """Open what is closed of standard input, output and error, so that no socket ever gets their
    numbers.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            os.set_inheritable(number, True)
