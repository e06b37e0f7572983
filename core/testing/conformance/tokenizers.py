"""What every tokenizer must pass."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from core.contracts.models import ModelSource
from core.plugin import load_plan, make_plan
from core.testing.checkpoints import write_tokenizer
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from core.testing.conformance import Subject

_TEXTS: Final = ("hello there", "two\nlines, and  two spaces", "0123 (x) = [y];")


def check_ids_are_below_vocab_size(subject: Subject) -> None:
    """The engine refuses ids outside the vocabulary, so its own tokenizer never makes one."""
    with _opened(subject) as tokenizer:
        for text in (*_TEXTS, "größer 漢字 🙂"):
            for token in tokenizer.encode(text):
                good = isinstance(token, int) and 0 <= token < tokenizer.vocab_size
                assert good, (
                    f"{subject.entry.name}: {text!r} has id {token!r} of {tokenizer.vocab_size}."
                )


def check_text_survives(subject: Subject) -> None:
    """Decoding the ids of a text gives the text back."""
    with _opened(subject) as tokenizer:
        for text in _TEXTS:
            found = tokenizer.decode(tokenizer.encode(text, add_special_tokens=False))
            assert found == text, f"{subject.entry.name}: {text!r} came back as {found!r}."


def check_examples_are_read_as_they_say(subject: Subject) -> None:
    """A text and its ids, special tokens left out; of a tokenizer that reads files, `EXAMPLES` is
    for the kit's own.
    """
    with _opened(subject) as tokenizer:
        for text, ids in examples(subject, 'EXAMPLES = [("ab", [97, 98])]'):
            found = list(tokenizer.encode(text, add_special_tokens=False))
            assert found == list(ids), (
                f"{subject.entry.name}: {text!r} has the ids {found}, its example says {ids}."
            )
            back = tokenizer.decode(ids)
            assert back == text, (
                f"{subject.entry.name}: {ids} is read as {back!r}, its example says {text!r}."
            )


def check_empty_text_has_no_tokens(subject: Subject) -> None:
    """Without special tokens there is nothing to add."""
    with _opened(subject) as tokenizer:
        assert list(tokenizer.encode("", add_special_tokens=False)) == [], (
            f"{subject.entry.name}: '' has tokens."
        )
        assert tokenizer.decode([]) == "", f"{subject.entry.name}: no tokens decode to a text."


def check_special_tokens_are_skipped_on_request(subject: Subject) -> None:
    """`skip_special_tokens` hides exactly them; written in a text they become their ids."""
    with _opened(subject) as tokenizer:
        plain = list(tokenizer.encode("hello", add_special_tokens=False))
        for token in sorted(tokenizer.special_ids):
            text = tokenizer.token_text(token)
            assert tokenizer.decode([*plain, token], skip_special_tokens=True) == "hello", (
                f"{text!r} is not left out."
            )
            found = tokenizer.encode(text, add_special_tokens=False)
            assert list(found) == [token], (
                f"{subject.entry.name}: {text!r} becomes {found}, not [{token}]."
            )


def check_end_of_sequence_is_special(subject: Subject) -> None:
    """The token that ends a sequence is never part of the text."""
    with _opened(subject) as tokenizer:
        end = tokenizer.eos_token_id
        assert end is None or end in tokenizer.special_ids, (
            f"{subject.entry.name}: eos {end} is not in special_ids."
        )


def check_any_ids_can_be_decoded(subject: Subject) -> None:
    """A model may say any id in any order; half a character comes out as U+FFFD, never as
    an error.
    """
    with _opened(subject) as tokenizer:
        ids = list(range(min(tokenizer.vocab_size, 500)))
        for part in (ids, ids[::-1], ids[1::2]):
            assert isinstance(tokenizer.decode(part), str), (
                f"{subject.entry.name}: decode gave no text."
            )
        half = list(tokenizer.encode("🙂", add_special_tokens=False))[:-1]
        if half:
            found = tokenizer.decode(half)
            assert "\N{REPLACEMENT CHARACTER}" in found, (
                f"{subject.entry.name}: half a character decodes to {found!r}."
            )
        assert all(isinstance(tokenizer.token_text(token), str) for token in ids), (
            "token_text must give texts."
        )


@contextmanager
def _opened(subject: Subject) -> Iterator[Any]:
    """Give the tokenizer: of the model its plugin calls `NAME:` where it has one, else of a folder
    with files.
    """
    config = subject.config
    own = load_plan(make_plan([])).find_model(f"{subject.entry.name}:", config)
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(folder)
        yield subject.target(
            own or ModelSource("tiny", "LlamaForCausalLM", None, path=folder), config
        )
