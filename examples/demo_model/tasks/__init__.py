"""One file per skill: `make(draw)` returns a new item."""
