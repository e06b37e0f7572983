"""Makes a tiny random Llama checkpoint with a tokenizer, so that there is something to serve without a download."""

from __future__ import annotations

import sys
from pathlib import Path

from core.testing.checkpoints import make_checkpoint

folder = Path(sys.argv[1])
folder.parent.mkdir(parents=True, exist_ok=True)
make_checkpoint("LlamaForCausalLM", folder)
