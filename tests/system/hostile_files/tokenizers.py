"""tokenizer.json: expressions, normalizers, vocabularies and templates that the library trusts."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.system.hostile_files.hostile_file import HostileFile, Write, binary, text

FILE: Final = "tokenizer.json"
KIND: Final = "tokenizer"
Stated = dict[str, Any]


def change(edit: Callable[[Stated], Any]) -> Write:
    """Return a writer that changes the good file."""

    def write(folder: Path) -> None:
        stated = json.loads((folder / FILE).read_text())
        edit(stated)
        (folder / FILE).write_text(json.dumps(stated))

    return write


def section(name: str, value: Any) -> Write:
    """Return a writer that replaces a section of the file."""
    return change(lambda stated: stated.update({name: value}))


def split(regex: str) -> Write:
    """Return a writer of a pre-tokenizer with a regular expression before the good one."""

    def edit(stated: Stated) -> None:
        part = {
            "type": "Split",
            "pattern": {"Regex": regex},
            "behavior": "Isolated",
            "invert": False,
        }
        good = stated["pre_tokenizer"]
        stated["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [part, good]}

    return change(edit)


def replace(old: str, new: str) -> dict[str, Any]:
    """Return a normalizer that replaces a text."""
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def normalizers(*parts: Any) -> Write:
    """Return a writer of a sequence of normalizers."""
    return section("normalizer", {"type": "Sequence", "normalizers": list(parts)})


def nested(section_name: str, children: str, leaf: Any, depth: int) -> Write:
    """Return a writer of sequences in sequences."""
    for _ in range(depth):
        leaf = {"type": "Sequence", children: [leaf]}
    return section(section_name, leaf)


def charsmap(content: bytes) -> Write:
    """Return a writer of a precompiled character map."""
    encoded = base64.b64encode(content).decode()
    return section("normalizer", {"type": "Precompiled", "precompiled_charsmap": encoded})


def template(num_tokens: int, ids: int = 1) -> Write:
    """Return a writer of a post-processor that adds tokens."""
    added = {"SpecialToken": {"id": "x", "type_id": 0}}
    return section(
        "post_processor",
        {
            "type": "TemplateProcessing",
            "single": [added] * num_tokens + [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": each, "type_id": 0}} for each in "AB"],
            "special_tokens": {"x": {"id": "x", "ids": [0] * ids, "tokens": ["!"] * ids}},
        },
    )


def added(content: str, token: int = 299, **facts: Any) -> Write:
    """Return a writer of one more added token."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return change(
        lambda stated: stated["added_tokens"].append(
            {"id": token, "content": content, "special": False, **plain, **facts}
        )
    )


def model(**facts: Any) -> Write:
    """Return a writer that replaces the model."""
    return section("model", facts)


def vocabulary(**entries: int) -> Write:
    """Return a writer that changes entries of the vocabulary."""
    return change(lambda stated: stated["model"]["vocab"].update(entries))


def raw(old: str, new: str) -> Write:
    """Return a writer that replaces text of the file."""

    def write(folder: Path) -> None:
        path = folder / FILE
        path.write_text(path.read_text().replace(old, new, 1))

    return write


def fifo(folder: Path) -> None:
    """Put a FIFO in place of the file."""
    (folder / FILE).unlink()
    os.mkfifo(folder / FILE)


def sparse(folder: Path) -> None:
    """Make a file of 64 GiB that takes no space."""
    with (folder / FILE).open("r+b") as file:
        file.truncate(64 << 30)


def truncated(folder: Path) -> None:
    """Cut the file off."""
    (folder / FILE).write_bytes((folder / FILE).read_bytes()[:5000])


def crowd(stated: Stated) -> None:
    """Add 20,000 tokens that overlap."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    stated["added_tokens"] += [
        {"id": 300 + n, "content": "a" * (n % 200 + 1) + str(n), "special": False, **plain}
        for n in range(20_000)
    ]


DOUBLING: Final = [replace("a", "aa")] * 28
UNIGRAM: Final = {"type": "Unigram", "unk_id": 0}
WRITERS: Final[dict[str, tuple[Write, str | None]]] = {
    "nested stars": (split("(a+)+$"), "regular expression"),
    "nested stars of classes": (split(r"(\w*\s*)*!"), "regular expression"),
    "alternatives in a star": (split("(a|a)*b"), "regular expression"),
    "alternatives that overlap": (split("(a|aa)+$"), "regular expression"),
    "optional parts": (split("(a?){30}a{30}"), "regular expression"),
    "counted alternatives": (split("(?:a|a){64}b"), "regular expression"),
    "nested counts": (split("((a{1,99}){1,99}){1,99}b"), "regular expression"),
    "many loops": (split("a*a*a*a*a*b"), "regular expression"),
    "lookahead of stars": (split("(?=(a+)+b)a"), "regular expression"),
    "lookbehind of stars": (split("(?<=(a|a)*)b"), "regular expression|no tokenizer"),
    "backreference": (split(r"(a*)*\1b"), "regular expression"),
    "recursive expression": (split(r"(?<x>a\g<x>*b)"), "regular expression"),
    "absent operator": (split("(?~(a+)+)"), "regular expression"),
    "comment in an expression": (split("(?x)(a # )\n+)+b"), "regular expression"),
    "expression nested 5,000 deep": (split("(" * 5000 + "a" + ")" * 5000), "regular expression"),
    "expression of a megabyte": (split("a" * (1 << 20)), "regular expression"),
    "expression without an end": (split("[a"), "regular expression"),
    "expression that matches nothing": (split(""), None),
    "expression of a normalizer": (
        normalizers({"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": ""}),
        "normalizer: got the regular expression",
    ),
    "expression of a decoder": (
        section("decoder", {"type": "Replace", "pattern": {"Regex": "(a|a)+$"}, "content": ""}),
        "decoder: got the regular expression",
    ),
    "28 doubling normalizers": (normalizers(*DOUBLING), "normalizer: got replacements"),
    "doubling normalizers and an added token": (
        change(
            lambda stated: (
                stated.update(normalizer={"type": "Sequence", "normalizers": DOUBLING}),
                stated["added_tokens"][0].update(normalized=True, content="aaaa"),
            )
        ),
        "normalizer: got replacements",
    ),
    "nested doubling normalizers": (
        normalizers(*[{"type": "Sequence", "normalizers": DOUBLING[:4]}] * 7),
        "normalizer: got replacements",
    ),
    "replacement of a megabyte": (normalizers(replace("a", "b" * (1 << 20))), "replacements"),
    "replacement of an empty text": (normalizers(replace("", "bb")), "cannot encode"),
    "prefix of a megabyte": (
        normalizers({"type": "Prepend", "prepend": "x" * (1 << 20)}),
        "replacements",
    ),
    "1,000 normalizers": (normalizers(*[{"type": "Lowercase"}] * 1000), "parts|bytes"),
    "normalizers nested 100 deep": (
        nested("normalizer", "normalizers", {"type": "Lowercase"}, 100),
        "parts|no tokenizer",
    ),
    "decoder that strips more than there is": (
        section("decoder", {"type": "Strip", "content": "a", "start": 500, "stop": 500}),
        "cannot decode it",
    ),
    "unknown normalizer nested 40 deep": (
        nested("normalizer", "normalizers", {"type": "Nope"}, 40),
        "no tokenizer that can be read",
    ),
    "unknown decoder nested 40 deep": (
        nested("decoder", "decoders", {"type": "Nope"}, 40),
        "no tokenizer that can be read",
    ),
    "sections nested 100,000 deep": (
        raw('"normalizer": null', '"normalizer": ' + "[" * 100_000 + "]" * 100_000),
        "no tokenizer that can be read",
    ),
    "character map that claims 4 GiB": (charsmap(b"\xfc\xff\xff\xff" + bytes(60)), "charsmap"),
    "character map that claims 1 GiB": (charsmap(b"\0\0\0\x40" + bytes(60)), "charsmap"),
    "character map without a trie": (charsmap(bytes(4)), "cannot encode"),
    "character map of three bytes": (charsmap(b"abc"), "charsmap"),
    "character map of garbage": (
        charsmap((1024).to_bytes(4, "little") + bytes(range(256)) * 4 + b"x\0"),
        "cannot encode",
    ),
    "character map with long replacements": (
        charsmap((4).to_bytes(4, "little") + bytes(4) + b"x" * (1 << 20) + b"\0"),
        "charsmap",
    ),
    "chunks of no characters": (
        section("pre_tokenizer", {"type": "FixedLength", "length": 0}),
        "pre_tokenizer.length",
    ),
    "template of a million tokens": (template(10**6), "post_processor"),
    "template token of a million ids": (template(1, ids=10**6), "post_processor"),
    "template of 65 tokens": (template(65), "special tokens"),
    "template without the text": (
        section(
            "post_processor",
            {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}},
        ),
        "prompt|empty|token",
    ),
    "padding to 2^40 tokens": (
        section(
            "padding",
            {
                "strategy": {"Fixed": 1 << 40},
                "direction": "Right",
                "pad_to_multiple_of": None,
                "pad_id": 0,
                "pad_type_id": 0,
                "pad_token": "!",
            },
        ),
        None,
    ),
    "truncation to nothing": (
        section(
            "truncation",
            {"max_length": 0, "stride": 0, "strategy": "LongestFirst", "direction": "Right"},
        ),
        None,
    ),
    "vocabulary id 2^32-1": (vocabulary(zz=2**32 - 1), "id|tokens"),
    "vocabulary id 2^63": (vocabulary(zz=2**63), "no tokenizer that can be read"),
    "vocabulary id negative": (vocabulary(zz=-1), "no tokenizer that can be read"),
    "vocabulary ids all equal": (
        change(lambda s: s["model"].update(vocab=dict.fromkeys(s["model"]["vocab"], 5))),
        None,
    ),
    "vocabulary empty": (
        change(lambda s: s["model"].update(vocab={}, merges=[])),
        "prompt|token|empty",
    ),
    "vocabulary of a token of a megabyte": (
        vocabulary(**{"z" * (1 << 20): 298}),
        "outside the vocabulary",
    ),
    "vocabulary of 100,000 more tokens": (
        vocabulary(**{f"tok{n}": 300 + n for n in range(100_000)}),
        "embedding",
    ),
    "merges of unknown tokens": (
        change(lambda s: s["model"].update(merges=[["xx", "yy"]])),
        "no tokenizer that can be read",
    ),
    "merges of numbers": (
        change(lambda s: s["model"].update(merges=[1, 2])),
        "no tokenizer that can be read",
    ),
    "dropout of 5": (change(lambda s: s["model"].update(dropout=5.0)), "no tokenizer"),
    "unknown token of WordLevel": (
        model(type="WordLevel", vocab={"a": 0}, unk_token="[UNK]"),
        "tokenizer cannot encode it",
    ),
    "WordPiece words of 2^63": (
        model(
            type="WordPiece",
            vocab={"a": 0, "[UNK]": 1},
            unk_token="[UNK]",
            continuing_subword_prefix="##",
            max_input_chars_per_word=2**63,
        ),
        "max_input_chars_per_word",
    ),
    "Unigram without an unknown token": (
        model(type="Unigram", unk_id=None, vocab=[["z", -1.0]]),
        "tokenizer cannot encode it",
    ),
    "Unigram unknown token outside": (
        model(type="Unigram", unk_id=7, vocab=[["z", -1.0]]),
        "no tokenizer that can be read",
    ),
    "Unigram scores of -1e308": (
        model(**UNIGRAM, vocab=[["<unk>", 0.0], *([letter, -1e308] for letter in "abcdefgh")]),
        None,
    ),
    "Unigram tokens of 8 megabytes": (
        model(**UNIGRAM, vocab=[["<unk>", 0.0], ["z" * (8 << 20), -1.0]]),
        "model.vocab",
    ),
    "Unigram scores of texts": (
        model(**UNIGRAM, vocab=[["<unk>", "x"]]),
        "no tokenizer that can be read",
    ),
    "unknown model": (model(type="Evil", vocab={}), "no tokenizer that can be read"),
    "added token without text": (added(""), None),
    "added token of a megabyte": (added("z" * (1 << 20)), None),
    "added token of spaces": (added(" ", lstrip=True, rstrip=True), "outside the vocabulary"),
    "added tokens that overlap": (change(crowd), None),
    "added token with id 2^32-1": (added("<zz>", token=2**32 - 1), None),
    "added token with id 2^63": (added("<zz>", token=2**63), "no tokenizer that can be read"),
    "added token of every byte": (added("".join(map(chr, range(1, 256)))), None),
    "decoder that strips 2^63": (
        section("decoder", {"type": "Strip", "content": "a", "start": 2**63, "stop": 2**63}),
        "decoder.start",
    ),
    "empty": (text(FILE, ""), "no tokenizer that can be read"),
    "a list": (text(FILE, "[]"), "no tokenizer that can be read"),
    "truncated": (
        truncated,
        "no tokenizer that can be read",
    ),
    "invalid UTF-8": (binary(FILE, b'{"a": "\xff"}'), "no tokenizer that can be read"),
    "duplicate sections": (raw('"normalizer": null', '"normalizer": null,' * 2), "no tokenizer"),
    "64 GiB of nothing": (sparse, "more than"),
    "FIFO": (fifo, "expected a regular file"),
}
CORPUS: Final = [
    HostileFile(KIND, name, write, refusal) for name, (write, refusal) in WRITERS.items()
]
