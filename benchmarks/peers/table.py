"""Table of a comparison: a row per figure, a column per contender, with limit and ratios."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.peers.contenders import KV_GB, OURS
from benchmarks.peers.limits import Rates, Shape, limit_figures
from benchmarks.peers.results import Median, Results, medians, ratio
from benchmarks.peers.work import TASKS


def tables(results: Results, shape: Shape, others: float) -> str:
    """Return the whole report as markdown."""
    found = medians(results.runs, others)
    bits = {start.contender: start.bits for start in results.starts}
    parts = [_conditions(results, others)]
    for width in sorted(set(bits.values()), reverse=True):
        names = [name for name in bits if bits[name] == width]
        parts += [
            f"## Weights of {width} bits\n",
            _table(found, results.median_rates(others), shape, names, width),
        ]
    if gains := _gains(found, bits):
        parts.append(gains)
    parts.append(_starts(results, shape))
    parts += [f"{name} is not there: {why}\n" for name, why in results.missing.items()]
    return "\n".join(parts)


def _conditions(results: Results, others: float) -> str:
    about = ", ".join(f"{name} {value}" for name, value in results.machine.items())
    products = ", ".join(
        f"{kind} {rate / 1e9:.0f}" for kind, rate in results.products(others).items()
    )
    read = results.median_rates(others).read_bytes_s / 1e9
    return (
        f"{about}.\n"
        f"Measured in the same run, medians of {len(results.undisturbed_rates(others))} of "
        f"{len(results.rates)} rounds: reads {read:.1f} GB/s; multiplies "
        f"bfloat16 (GFLOP/s): {products}.\n"
    )


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def _table(
    found: Mapping[tuple[str, str], Mapping[str, Median]],
    rates: Rates,
    shape: Shape,
    names: list[str],
    bits: int,
) -> str:
    text = _row("work", "figure", *names, "limit", "engine / best peer", "engine / limit")
    text += _row("---", "---", *["---:"] * (len(names) + 3))
    for (key, figure), by_name in found.items():
        row = {name: by_name[name] for name in names if name in by_name}
        if not row:
            continue
        limit = limit_figures(TASKS[key], shape, rates, bits)[figure]
        own = next((row[name].value for name in row if name.startswith(OURS)), None)
        against = [
            ratio(figure, own, m.value) for n, m in row.items() if own and not n.startswith(OURS)
        ]
        cells = [_cell(row.get(name)) for name in names]
        last = [
            f"{min(against):.2f}" if against else "",
            f"{ratio(figure, own, limit):.2f}" if own else "",
        ]
        text += _row(TASKS[key].about, figure, *cells, f"{limit:.1f}", *last)
    return text


def _cell(median: Median | None) -> str:
    if median is None:
        return ""
    notes = [f"{median.runs} run"] if median.runs == 1 else []
    notes += [f"{median.dropped} disturbed left out"] if median.dropped else []
    notes += ["disturbed"] if median.disturbed else []
    return f"{median.value:.1f}" + (f" ({', '.join(notes)})" if notes else "")


def _gains(found: Mapping[tuple[str, str], Mapping[str, Median]], bits: Mapping[str, int]) -> str:
    """Return the gains of this engine from fewer bits and more streams."""
    ours = [name for name in bits if name.startswith(OURS)]
    text = ""
    for (key, figure), by_name in found.items():
        if OURS not in by_name:
            continue
        for name in ours:
            if name != OURS and name in by_name:
                gain = ratio(figure, by_name[name].value, by_name[OURS].value)
                text += f"- {name}, {TASKS[key].about}, {figure}: {gain:.2f} times 16 bits.\n"
    one, many = (found.get((key, "decode, tokens/s"), {}).get(OURS) for key in "de")
    if one and many:
        text += f"- 16 streams: {many.value / one.value:.2f} times the tokens of one.\n"
    return text


def _starts(results: Results, shape: Shape) -> str:
    text = "## Start and memory\n\n"
    text += _row(
        "",
        "first token after, s",
        "memory then, MB",
        "memory at the end, MB",
        "end / (weights + cache)",
    )
    text += _row("---", *["---:"] * 4)
    for start in results.starts:
        end = results.final_pss_bytes.get(start.contender, start.pss_bytes)
        should = shape.weight_bytes(start.bits) + (KV_GB << 30)
        cells = (
            f"{start.first_token_s:.1f}",
            f"{start.pss_bytes / 1e6:.0f}",
            f"{end / 1e6:.0f}",
            f"{end / should:.2f}",
        )
        text += _row(start.contender, *cells)
    return (
        text
        + f"\nEach cache may hold {KV_GB} GB of keys and values. Memory is shared out among those "
        "that share it (PSS).\n"
    )
