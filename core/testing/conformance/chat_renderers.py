"""What every chat renderer must keep."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from core.errors import InvalidRequest
from core.testing.byte_tokenizer import ByteTokenizer
from core.testing.conformance.examples import examples

if TYPE_CHECKING:
    from core.testing.conformance import Subject

_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if "
    "add_generation_prompt %}<assistant>{% endif %}"
)
_MESSAGES = [{"role": "user", "content": "hello <there> é"}]


class _Tokenizer(ByteTokenizer):
    chat_template = _TEMPLATE  # type: ignore[assignment]


def _renderer(subject: Subject) -> Any:
    return subject.target(
        _Tokenizer(), SimpleNamespace(name="conformance", path=None), subject.config
    )


def check_shows_the_messages_text(subject: Subject) -> None:
    """The prompt holds the message's text unchanged: nothing is escaped."""
    prompt = _renderer(subject).render(copy.deepcopy(_MESSAGES))
    assert isinstance(prompt, str), (
        f"{subject.entry.name}: render returned {type(prompt).__name__}, not a text."
    )
    assert "hello <there> é" in prompt, (
        f"{subject.entry.name}: the message's text is not in {prompt!r}."
    )


def check_examples_are_rendered_as_they_say(subject: Subject) -> None:
    """Messages, keywords of `render`, and the prompt."""
    form = 'EXAMPLES = [([{"role": "user", "content": "Hi"}], {}, "user: Hi\\nassistant: ")]'
    for messages, keywords, prompt in examples(subject, form):
        found = _renderer(subject).render(messages, **keywords)
        assert found == prompt, (
            f"{subject.entry.name}: {messages} is rendered as {found!r}, its example says "
            f"{prompt!r}."
        )


def check_is_a_pure_function(subject: Subject) -> None:
    """Rendering twice gives the same prompt and leaves the messages as they were."""
    renderer = _renderer(subject)
    messages = copy.deepcopy(_MESSAGES)
    first = renderer.render(messages)
    second = renderer.render(messages)
    assert first == second, f"{subject.entry.name}: {first!r}, then {second!r}."
    assert messages == _MESSAGES, f"{subject.entry.name}: render changed the messages."


def check_goes_on_from_the_final_message(subject: Subject) -> None:
    """A continued final message ends the prompt, without an end mark after it."""
    messages = [*copy.deepcopy(_MESSAGES), {"role": "assistant", "content": "I was say"}]
    prompt = _renderer(subject).render(
        messages, add_generation_prompt=False, continue_final_message=True
    )
    assert prompt.endswith("I was say"), (
        f"{subject.entry.name}: the prompt ends with {prompt[-40:]!r}."
    )


def check_refuses_bad_messages_by_index(subject: Subject) -> None:
    """A malformed message is an `InvalidRequest` with the field of the message."""
    for bad in (
        [],
        [{"content": "no role"}],
        [*_MESSAGES, "text"],
        [{"role": "user", "content": 7}],
    ):
        try:
            _renderer(subject).render(bad)
        except InvalidRequest as error:
            named = error.field
        else:
            raise AssertionError(f"{subject.entry.name}: rendered {bad!r} instead of refusing it.")
        assert named.startswith("messages"), (
            f"{subject.entry.name}: names {named!r}, not the message."
        )
