"""Writes a random bfloat16 checkpoint in the shape of Qwen3-0.6B with 32,000 tokens.

473 million weights, 946 MB. Run: python -m benchmarks.peers.make_model FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.testing.checkpoints import make_checkpoint

SHAPE: Final[Mapping[str, Any]] = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


def write_model(folder: Path) -> None:
    """Write the checkpoint into a folder."""
    make_checkpoint("Qwen3ForCausalLM", folder, **SHAPE)
    spell_out(folder / "tokenizer.json")


def spell_out(file: Path) -> None:
    """Give each token a text: clients count tokens with text."""
    tokenizer = json.loads(file.read_text())
    vocab = tokenizer["model"]["vocab"]
    vocab |= {
        token["content"]: token["id"] for token in tokenizer["added_tokens"]
    }  # otherwise they move to the end
    known = set(vocab.values())
    vocab |= {f"Ġ{token}": token for token in range(SHAPE["vocab_size"]) if token not in known}
    file.write_text(json.dumps(tokenizer))


def main() -> None:
    """Write the checkpoint to the folder of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    write_model(parser.parse_args().folder)


if __name__ == "__main__":
    main()
