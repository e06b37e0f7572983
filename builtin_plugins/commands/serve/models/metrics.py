"""One page of metrics of several models: their processes' pages, and the states of all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from builtin_plugins.commands.serve.models.pool import Model

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABEL: Final = "model_name"
_FAMILY: Final = re.compile(r"# (HELP|TYPE) (\S+)")
_SAMPLE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (.*)")


def merge_pages(pages: Mapping[str, str]) -> str:
    """Return the pages of models as one, in which each sample has the model's name."""
    heads: dict[str, dict[str, str]] = {}
    samples: dict[str, list[str]] = {}
    for name, page in pages.items():
        family = ""
        for line in page.splitlines():
            if head := _FAMILY.match(line):
                family = head[2]
                heads.setdefault(family, {}).setdefault(head[1], line)
            elif found := _SAMPLE.fullmatch(line):
                labels = found[2] or ""
                if f'{LABEL}="' not in labels:
                    labels = ",".join(filter(None, [f'{LABEL}="{_escaped(name)}"', labels]))
                sample = f"{found[1]}{{{labels}}} {found[3]}"
                samples.setdefault(family, []).append(sample)
    lines = []
    for family, found_samples in samples.items():
        lines += [*heads.get(family, {}).values(), *found_samples]
    return "".join(f"{line}\n" for line in lines)


def pool_page(models: Sequence[Model], prefix: str) -> str:
    """Return the states of all models."""
    rows = (
        ("model_loaded", "gauge", "Whether the model is loaded."),
        ("model_loads_total", "counter", "Loads of the model."),
        ("model_open_requests", "gauge", "Open requests of the model."),
        ("model_waiting_requests", "gauge", "Requests that wait until the model is loaded."),
    )
    lines = []
    for name, kind, text in rows:
        lines += [f"# HELP {prefix}{name} {text}", f"# TYPE {prefix}{name} {kind}"]
        for model in models:
            value = {
                "model_loaded": int(model.state == "loaded"),
                "model_loads_total": model.num_loads,
                "model_open_requests": model.num_open,
                "model_waiting_requests": len(model.waiting),
            }[name]
            lines.append(f'{prefix}{name}{{{LABEL}="{_escaped(model.name)}"}} {value}')
    return "".join(f"{line}\n" for line in lines)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
