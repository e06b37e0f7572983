"""SVG plot of a comparison: one bar per figure and contender, relative to the machine's limit."""

from __future__ import annotations

from html import escape

from benchmarks.peers.limits import Shape, limit_figures
from benchmarks.peers.results import Results, medians, ratio
from benchmarks.peers.work import TASKS

BAR = 14
LABEL = 330
FULL = 500
"""Width of the limit in pixels."""
COLOURS = (
    "#1f6feb",
    "#8b949e",
    "#d29922",
    "#3fb950",
    "#a371f7",
    "#f85149",
    "#39c5cf",
    "#db61a2",
    "#6e7681",
    "#b08800",
)


def draw(results: Results, shape: Shape, others: float) -> str:
    """Return the SVG."""
    found = medians(results.runs, others)
    rates = results.median_rates(others)
    bits = {start.contender: start.bits for start in results.starts}
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(bits)}
    parts: list[str] = []
    y = 50
    for (key, figure), by_name in found.items():
        task = TASKS[key]
        parts.append(
            f'<text x="10" y="{y + BAR - 3}">{escape(task.about)}: {escape(figure)}</text>'
        )
        for name, median in by_name.items():
            limit = limit_figures(task, shape, rates, bits[name])[figure]
            share = ratio(figure, median.value, limit)
            width = max(1, round(share * FULL))
            parts.append(
                f'<rect x="{LABEL}" y="{y}" width="{width}" height="{BAR - 2}" '
                f'fill="{colours[name]}"/>'
            )
            text = f"{escape(name)} {median.value:.1f} ({share:.0%})"
            parts.append(f'<text x="{LABEL + width + 5}" y="{y + BAR - 3}">{text}</text>')
            y += BAR
        y += BAR
    title = (
        "Share of what the machine's read bandwidth and rate of products allow (line: all of it)"
    )
    x = LABEL + FULL
    line = f'<line x1="{x}" y1="40" x2="{x}" y2="{y}" stroke="#f85149" stroke-dasharray="4"/>'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{x + 260}" height="{y + 10}" '
        'font-family="sans-serif"'
    )
    ground = '<rect width="100%" height="100%" fill="white"/>'
    return "\n".join(
        [
            f'{head} font-size="11">',
            ground,
            f'<text x="10" y="20">{title}</text>',
            line,
            *parts,
            "</svg>\n",
        ]
    )
