"""What every admission extension must keep. What clients give it stands in its module:

`EXAMPLE_REQUESTS = [({"greeting": "hello "}, "there", "hello there")]`: keywords, a prompt, and the
prompt's text as it becomes (None: any). Prompts are read by a tokenizer of bytes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Collection, Iterator, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final

from core.contracts.admission import AdmissionContext, PendingRequest
from core.errors import InvalidRequest
from core.testing.byte_tokenizer import ByteTokenizer
from core.testing.conformance.extensions import check_methods_can_be_called_as_the_contract_says
from core.types import SamplingParams
from core.types.outputs import EXTRA_FIELDS
from core.types.prompts import Prompt

if TYPE_CHECKING:
    from core.testing.conformance import Subject

__all__ = ["check_methods_can_be_called_as_the_contract_says"]

_NAMES: Final = ("keywords", "fields", "prompt_keys")
_TOKENIZER: Final[Any] = ByteTokenizer()


def check_names_are_collections_of_texts(subject: Subject) -> None:
    """A text by itself would be read letter by letter."""
    for extension in _made(subject):
        for name in ("params", *_NAMES):
            found = getattr(extension, name, ())
            good = (
                isinstance(found, Collection)
                and not isinstance(found, str)
                and all(isinstance(n, str) for n in found)
            )
            assert good, f"{type(extension).__name__}: {name} is {found!r}; give a tuple of texts."
        unknown = [
            name
            for name in getattr(extension, "params", ())
            if name not in SamplingParams.__struct_fields__
        ]
        assert not unknown, (
            f"{type(extension).__name__}: params names {unknown}, which SamplingParams has not."
        )


def check_is_tried_with_an_example(subject: Subject) -> None:
    """What is read under names of its own cannot be made up: `EXAMPLE_REQUESTS` says what clients
    give.
    """
    for extension in _made(subject):
        if _names(extension) and hasattr(extension, "prepare"):
            stated = subject.target.examples.get("EXAMPLE_REQUESTS")
            assert stated, (
                f"{subject.entry.name}: define EXAMPLE_REQUESTS next to the hook: (keywords, "
                "prompt, "
                "prompt as it becomes)."
            )


def check_requests_that_give_nothing_pass_unchanged(subject: Subject) -> None:
    """An unused extension costs nothing: neither `applies_to` nor `affects` says yes to a request
    without its names.
    """
    for extension in _made(subject):
        if _names(extension) and hasattr(extension, "applies_to"):
            answer = extension.applies_to(_draft("Hello.", {}))
            assert answer is False, (
                f"{type(extension).__name__}: applies_to() returned {answer!r} for a request that "
                "gives "
                "nothing."
            )


def check_examples_become_what_they_say(subject: Subject) -> None:
    """A request is completed as its example says, the same each time, and the draft that was given
    stays as it was.
    """
    for given, prompt, becomes in subject.target.examples.get("EXAMPLE_REQUESTS", ()):
        for extension in _made(subject):
            if not _reads(extension, given):
                continue
            draft = _draft(prompt, given)
            original = deepcopy(draft)
            first, second = (_prepared(extension, draft) for _ in range(2))
            owner = type(extension).__name__
            assert isinstance(first, PendingRequest), (
                f"{owner}: prepare returned {first!r:.80}; return a Draft (dataclasses.replace)."
            )
            assert draft == original, (
                f"{owner}: prepare changed the draft it was given; return another one."
            )
            assert first == second, f"{owner}: preparing {given!r} twice gave two results."
            assert first.request_id == original.request_id, f"{owner}: prepare renamed the request."
            text = _TOKENIZER.decode(first.prompt_token_ids)
            assert becomes in (None, text), (
                f"{owner}: {prompt!r} with {given!r} becomes {text!r}, not {becomes!r}."
            )


def check_nonsense_is_refused_by_name(subject: Subject) -> None:
    """Values come from strangers: one of another kind is refused with `InvalidRequest` under its
    name, or passes.
    """
    for extension in _made(subject):
        for name in _names(extension) if hasattr(extension, "prepare") else ():
            for value in (object(), [[]], {"a": object()}, -(2**70), "\x00" * 9):
                refused_as = _refusal(extension, name, value)
                assert refused_as.startswith(name), (
                    f"{name}={value!r:.40} is refused under the name {refused_as!r}."
                )


def check_parameters_stay_parameters(subject: Subject) -> None:
    """`admit` returns `SamplingParams` for requests that `affects` accepts."""
    for extension in _made(subject):
        if hasattr(extension, "admit"):
            plain = SamplingParams()
            wants = extension.affects(plain) if hasattr(extension, "affects") else True
            assert isinstance(wants, bool), (
                f"{type(extension).__name__}: affects() returned {wants!r}; return True or False."
            )
            found = extension.admit(plain, [256]) if wants else plain
            good = isinstance(found, SamplingParams)
            assert good, (
                f"{type(extension).__name__}: admit returned {found!r:.80}; return SamplingParams."
            )


def check_outputs_are_filled_where_they_may_be(subject: Subject) -> None:
    """`finished` returns fields that are a feature's to fill, and none for messages it
    never sent.
    """
    for extension in _made(subject):
        if hasattr(extension, "finished"):
            found = extension.finished({})
            assert isinstance(found, Mapping), (
                f"{type(extension).__name__}: finished returned {found!r}; return a mapping."
            )
            foreign = sorted(set(found) - set(EXTRA_FIELDS))
            assert not foreign, (
                f"{type(extension).__name__}: finished fills {foreign}, which are the engine's own."
            )


def _made(subject: Subject) -> Iterator[Any]:
    """Yield the extensions, attached to an edge without a model."""
    edge = AdmissionContext(
        facts={}, read=_read, tokenizer=_TOKENIZER, vocab_size=257, max_model_len=256
    )
    for extension in subject.target.given():
        if hasattr(extension, "attach"):
            extension.attach(edge)
        yield extension


def _read(prompt: Any, add_special_tokens: bool = True, max_tokens: int | None = None) -> Prompt:
    if not isinstance(prompt, str):
        raise InvalidRequest("prompt", f"must be a text, not {type(prompt).__name__}.")
    return Prompt(_TOKENIZER.encode(prompt)[:max_tokens], prompt)


def _draft(prompt: str, given: Mapping[str, Any]) -> PendingRequest:
    ids = _TOKENIZER.encode(prompt)
    return PendingRequest(
        request_id="r",
        prompt_token_ids=ids,
        sampling=SamplingParams(),
        plugin_fields=dict(given),
        text=prompt,
    )


def _names(extension: Any) -> list[str]:
    return [name for names in _NAMES for name in getattr(extension, names, ())]


def _reads(extension: Any, given: Mapping[str, Any]) -> bool:
    return hasattr(extension, "prepare") and any(name in given for name in _names(extension))


def _prepared(extension: Any, draft: PendingRequest) -> Any:
    found = extension.prepare(draft)
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(found: Any) -> Any:
    return await found


def _refusal(extension: Any, name: str, value: Any) -> str:
    """Return the field that is refused; the name itself where the value passes."""
    try:
        found = _prepared(extension, _draft("Hello.", {name: value}))
    except InvalidRequest as error:
        return error.field
    except Exception as error:
        found = f"{name}={value!r:.40} raises {type(error).__name__}: {error}"
        raise AssertionError(f"{found}; raise InvalidRequest({name!r}, ...).") from error
    assert isinstance(found, PendingRequest), (
        f"{name}={value!r:.40} gives {found!r:.80}, which is no Draft."
    )
    return name
