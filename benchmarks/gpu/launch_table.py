"""The committed numbers of launches of a decode step, by architecture."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

TABLE: Final = Path(__file__).with_name("launches.md")
HEAD: Final = (
    "| architecture | layers | model | outside | step |\n| --- | ---: | ---: | ---: | ---: |"
)


@dataclass(frozen=True, slots=True)
class Launches:
    """Launches of one decode step."""

    layers: tuple[int, ...]
    """Distinct numbers of launches of a layer, ascending."""
    model: int
    """Launches of the model outside its layers: embedding, attention plan, last norm."""
    outside: int
    """Launches before and after the model: inputs, head and sampling."""
    step: int
    """All launches of the tiny model's step."""

    def row(self, architecture: str) -> str:
        """Return the row of the table."""
        layers = ", ".join(map(str, self.layers))
        return f"| {architecture} | {layers} | {self.model} | {self.outside} | {self.step} |"


def committed() -> dict[str, Launches]:
    """Return the rows of the committed table by architecture."""
    rows = {}
    for line in TABLE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 5 and cells[-1].isdigit():
            layers = tuple(map(int, cells[1].split(", ")))
            rows[cells[0]] = Launches(layers, *map(int, cells[2:]))
    return rows
