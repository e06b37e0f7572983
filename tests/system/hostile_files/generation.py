"""generation_config.json and sentence-transformers' files: wild values and folders elsewhere."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import HostileFile, Write, fields, text

FILE: Final = "generation_config.json"
MODULES: Final = "modules.json"
KIND: Final = "generation config"
SENTENCE: Final = "sentence-transformers config"
HUGE: Final = 2**63
change = partial(fields, FILE)


def modules(*listed: Any) -> Write:
    """Return a writer of sentence-transformers' list of modules."""
    return text(MODULES, json.dumps(list(listed)))


def module(kind: str, path: Any = "", index: Any = 0) -> dict[str, Any]:
    """Return one module."""
    return {"idx": index, "name": str(index), "path": path, "type": f"a.{kind}"}


def pooling(**stated: Any) -> Write:
    """Return a writer of a pooling module."""

    def write(folder: Path) -> None:
        modules(module("Transformer"), module("Pooling", "1_Pooling", 1))(folder)
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(stated))

    return write


def fifo(folder: Path) -> None:
    """Put a FIFO in place of the file."""
    (folder / FILE).unlink(missing_ok=True)
    os.mkfifo(folder / FILE)


WRITERS: Final[dict[str, tuple[Write, str | None]]] = {
    "temperature NaN": (change(temperature=float("nan"), do_sample=True), "temperature"),
    "temperature infinite": (change(temperature=float("inf")), "temperature"),
    "temperature negative": (change(temperature=-1), "temperature"),
    "temperature a list": (change(temperature=[1.0]), "temperature"),
    "temperature 1e-320": (change(temperature=1e-320), None),
    "top_p 2^63": (change(top_p=HUGE), "top_p"),
    "top_k 2^63": (change(top_k=HUGE), "top_k"),
    "top_k a float": (change(top_k=0.5), "top_k"),
    "repetition penalty 0": (change(repetition_penalty=0), "repetition_penalty"),
    "repetition penalty 1e308": (change(repetition_penalty=1e308), "repetition_penalty"),
    "new tokens negative": (change(max_new_tokens=-1), "max_tokens"),
    "new tokens 2^63": (change(max_new_tokens=HUGE), "max_tokens|max_new_tokens"),
    "end token 2^63": (change(eos_token_id=HUGE), "eos_token_id"),
    "end tokens of a million": (change(eos_token_id=[3] * 10**6), "stop_token_ids"),
    "end tokens nested": (change(eos_token_id=[[1]]), "eos_token_id"),
    "suppressed tokens 2^63": (change(suppress_tokens=[HUGE]), None),
    "suppressed tokens negative": (change(suppress_tokens=[-5]), None),
    "suppressed tokens of a million": (change(suppress_tokens=[5] * 10**6), None),
    "suppressed tokens of all": (
        change(suppress_tokens=list(range(300))),
        "every token is excluded",
    ),
    "forced end token outside": (change(forced_eos_token_id=999), "forced_eos_token_id"),
    "bad words of 100,000": (change(bad_words_ids=[[n % 290, 5] for n in range(100_000)]), None),
    "bad words empty": (change(bad_words_ids=[[]]), None),
    "bad words a text": (change(bad_words_ids="abc"), "bad_words_ids"),
    "bad words outside": (change(bad_words_ids=[[HUGE]]), None),
    "stop strings of a million": (change(stop_strings=["x"] * 10**6), None),
    "watermark of code": (change(watermarking_config={"a": "os.system"}), None),
    "nested 100,000 deep": (text(FILE, "[" * 100_000), "generation_config.json"),
    "a list": (text(FILE, "[]"), "generation_config.json"),
    "empty": (text(FILE, ""), "generation_config.json"),
    "FIFO": (fifo, None),
}
SENTENCES: Final[dict[str, tuple[Write, str | None]]] = {
    "modules of a number": (text(MODULES, "7"), "modules"),
    "modules nested": (text(MODULES, "[" * 900 + "]" * 900), "modules.json"),
    "module to the parent folder": (modules(module("Pooling", "../../etc")), "got the folder"),
    "module to an absolute path": (modules(module("Dense", "/etc")), "got the folder"),
    "module to a NUL": (modules(module("Dense", "a\0b")), "modules|Dense|read|folder"),
    "module to a long name": (modules(module("Dense", "n" * 5000)), "modules|read|folder"),
    "module of code": (modules(module("os.system")), "module class"),
    "indices of texts and numbers": (
        modules(module("Transformer", index="x"), module("Normalize", index=2)),
        "modules",
    ),
    "pooling mode a dictionary": (pooling(pooling_mode={"a": 1}), "pooling_mode"),
    "pooling mode unknown": (pooling(pooling_mode="evil"), "evil"),
    "pooling mode of 10,000": (pooling(pooling_mode="+".join(["mean"] * 10_000)), "pooling_mode"),
    "prompts a list": (
        lambda folder: (
            modules(module("Transformer"))(folder),
            text("config_sentence_transformers.json", '{"prompts": [1]}')(folder),
        )[0],
        "prompts",
    ),
    "longest text negative": (text("sentence_bert_config.json", '{"max_seq_length": -5}'), None),
    "longest text 0": (text("sentence_bert_config.json", '{"max_seq_length": 0}'), None),
    "longest text 2^63": (text("sentence_bert_config.json", f'{{"max_seq_length": {HUGE}}}'), None),
    "activation of code": (
        text("config_sentence_transformers.json", '{"activation_fn": "os.system"}'),
        "os.system",
    ),
}
CORPUS: Final = [
    HostileFile(kind, name, write, refusal)
    for kind, cases in ((KIND, WRITERS), (SENTENCE, SENTENCES))
    for name, (write, refusal) in cases.items()
]
