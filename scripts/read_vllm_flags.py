"""Writes `vllm_flags.json`: the flags of `vllm serve`, from an installed vLLM.

Run it as `python scripts/read_vllm_flags.py` in an environment with the vLLM to compare with.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from enum import Enum
from pathlib import Path
from typing import Any

FLAGS = Path(__file__).parent / "vllm_flags.json"


def main() -> None:
    sys.argv = ["vllm", "mkdocs"]  # vLLM hides --model from `serve --help`
    arguments = importlib.import_module("vllm.entrypoints.common.cli_args")
    parsers = importlib.import_module("vllm.utils.argparse_utils")
    version = importlib.import_module("vllm.version").__version__
    parser = arguments.make_arg_parser(parsers.FlexibleArgumentParser())
    write(parser, version)


def write(parser: argparse.ArgumentParser, version: str) -> None:
    """Write the file: one line per flag, with its default and its spellings."""
    found = {
        action.dest: {"default": plain(action.default), "spellings": action.option_strings}
        for action in parser._actions
        if action.option_strings
    }
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(found[name])}" for name in found)
    FLAGS.write_text(f'{{\n  "version": "{version}",\n  "flags": {{\n{lines}\n  }}\n}}\n')


def plain(value: Any) -> Any:
    """Return a default as JSON; `{}` for an object of configuration."""
    if value == argparse.SUPPRESS:
        return None
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, set):
        return sorted(value)
    return value if isinstance(value, (str, int, float, list, dict, type(None))) else {}


if __name__ == "__main__":
    main()
