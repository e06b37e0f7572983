"""Plots of results with matplotlib, an optional dependency."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core.api import ConfigError

SUFFIXES: Final = (".png", ".svg", ".pdf")
COLOURS: Final = ("#3b6fb6", "#e0803a", "#4d9a5b", "#a04d8f", "#8a8a8a")


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean values over x."""

    x: Sequence[float]
    y: Sequence[float]
    apart: Sequence[float]
    """Standard deviation of the runs at each x."""


def check_plot(file: str) -> None:
    """Raise `ConfigError` if the plot could not be written."""
    if Path(file).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {file}: unknown file type; use {', '.join(SUFFIXES)}.")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed: `pip install core[bench]`."
        )


def plot_distributions(
    file: str, title: str, panels: Mapping[str, Sequence[float]], unit: str
) -> None:
    """Draw cumulative distributions, with median and 99th percentile marked."""
    figure, (axes,) = _figure(title, len(panels))
    for axis, colour, (name, values) in zip(axes, COLOURS, panels.items(), strict=False):
        ordered = sorted(values)
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        axis.step(
            [ordered[0], *ordered] if ordered else [],
            [0.0, *shares] if ordered else [],
            color=colour,
            where="post",
        )
        for share, style in ((0.5, "--"), (0.99, ":")):
            if ordered:
                at = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
                axis.axvline(at, color="#555555", linestyle=style, linewidth=0.9)
                axis.annotate(
                    f" p{share * 100:g} {_figures(at)}",
                    (at, 0.04 if share < 0.9 else 0.14),
                    fontsize=8,
                )
        axis.set(
            title=name,
            xlabel=unit,
            ylabel="share of all" if axis is axes[0] else "",
            ylim=(0, 1.02),
        )
        axis.set_xlim(0, 1.15 * max(ordered, default=1.0))
    _save(figure, file)


def plot_bars(file: str, title: str, unit: str, bars: Mapping[str, Mapping[str, float]]) -> None:
    """Draw one horizontal stacked bar per name."""
    figure, ((axis,),) = _figure(title, 1, height=1.4 + 0.5 * len(bars))
    parts = list(dict.fromkeys(part for values in bars.values() for part in values))
    names = list(bars)
    left = [0.0] * len(names)
    for colour, part in zip(COLOURS * len(parts), parts, strict=False):
        widths = [bars[name].get(part, 0.0) for name in names]
        axis.barh(names, widths, left=left, color=colour, label=part, height=0.6)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    for row, total in enumerate(left):
        axis.annotate(f" {_figures(total)}", (total, row), va="center", fontsize=8)
    axis.set(xlabel=unit)
    axis.margins(x=0.12)
    axis.invert_yaxis()
    if len(parts) > 1:
        axis.legend(
            frameon=False,
            fontsize=8,
            ncols=len(parts),
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
        )
    _save(figure, file)


def plot_lines(
    file: str,
    title: str,
    x: Sequence[float],
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    xlabel: str,
) -> None:
    """Draw lines over x, both axes logarithmic, one panel per quantity."""
    figure, (axes,) = _figure(title, len(panels))
    for axis, (name, lines) in zip(axes, panels.items(), strict=True):
        for colour, (label, values) in zip(COLOURS, lines.items(), strict=False):
            axis.plot(x, values, "o-", color=colour, label=label, markersize=4)
        axis.set(title=name, xlabel=xlabel, xscale="log", yscale="log")
        axis.set_xticks(list(x), [f"{value:g}" for value in x])
        axis.minorticks_off()
        axis.yaxis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.legend(frameon=False, fontsize=8)
    _save(figure, file)


def plot_grid(
    file: str,
    title: str,
    grid: Sequence[Sequence[tuple[str, Mapping[str, Curve]]]],
    names: tuple[str, str],
    scales: tuple[str, str],
    *,
    bars: bool,
) -> None:
    """Draw a grid of panels with titled curves; `names` and `scales` are those of x and y."""
    figure, axes = _figure(
        title, max(len(row) for row in grid), height=3.4 * len(grid), rows=len(grid)
    )
    for row, panels in zip(axes, grid, strict=True):
        for axis, (name, curves) in zip(row, panels, strict=True):
            for index, (label, curve) in enumerate(curves.items()):
                colour = COLOURS[index % len(COLOURS)]
                error = curve.apart if bars else None
                axis.errorbar(
                    curve.x,
                    curve.y,
                    error,
                    fmt="o-",
                    color=colour,
                    label=label,
                    markersize=4,
                    capsize=2,
                )
            axis.set(
                title=name, xlabel=names[0], ylabel=names[1], xscale=scales[0], yscale=scales[1]
            )
            if any(curves):
                axis.legend(frameon=False, fontsize=8)
    _save(figure, file)


def plot_frontier(
    file: str,
    points: Sequence[tuple[float, float, str]],
    best: Sequence[tuple[float, float, str]],
    names: tuple[str, str],
) -> None:
    """Draw points and the labelled frontier line."""
    figure, ((axis,),) = _figure("", 1, height=4.6, rows=1)
    axis.plot(
        [x for x, _, _ in points], [y for _, y, _ in points], "o", color=COLOURS[4], markersize=4
    )
    axis.plot(
        [x for x, _, _ in best], [y for _, y, _ in best], "o-", color=COLOURS[0], markersize=5
    )
    for x, y, label in best:
        axis.annotate(label, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axis.set(xlabel=names[0], ylabel=names[1])
    axis.margins(x=0.12, y=0.1)
    _save(figure, file)


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _figure(title: str, panels: int, height: float = 3.4, rows: int = 1) -> tuple[Any, Any]:
    """Return a figure and its axes by row."""
    # lazy: optional; by name, so that type checking works without it
    figure = importlib.import_module("matplotlib.figure").Figure(
        figsize=(max(6.4, 3.6 * panels), height), layout="constrained"
    )
    figure.suptitle(title, fontsize=11)
    axes = figure.subplots(rows, panels, squeeze=False)
    for axis in axes.flat:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, file: str) -> None:
    figure.savefig(file, dpi=140)
