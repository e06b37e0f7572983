"""What every half of a feature must keep, whichever it is: a name, methods that can be called, and
requests that end.

The scheduler and worker extensions run in an engine of the fake model, with every answer looked
at as it is given.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from core.config.build import config_from_kwargs
from core.frontend.llm import LLM
from core.plugin import load_plan, make_plan
from core.testing.checked_extensions import watch
from core.testing.conformance import contract_of
from core.testing.conformance.extension_points import EXTENSION_POINTS, ExtensionPoint
from core.testing.conformance.signatures import assert_takes
from core.testing.invariants import check_scheduler
from core.types import SamplingParams

if TYPE_CHECKING:
    from core.testing.conformance import Subject

MAX_STEPS: Final = 600
"""Far more than the requests below take, even one after the other."""
MAX_IDLE_STEPS: Final = 20
"""Consecutive steps without computation; after each the engine waits briefly for a wake-up."""
_FAKE: Final = "core.testing.fake_model"
_SETTINGS: Final[Mapping[str, Any]] = {
    "model": "fake:",
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "max_model_len": 64,
    "block_size": 4,
    "skip_tokenizer_init": True,
    "log_level": "error",
    "dtype": "float32",
}
_PROMPTS: Final = tuple(
    [2 + (seed * 7 + i * i) % 60 for i in range(count)]
    for seed, count in enumerate((3, 30, 9, 17, 5))
)
Outcome = tuple[list[int], str | None]


def check_has_a_name(subject: Subject) -> None:
    """Payloads, calls and bytes of requests go by it."""
    for extension in subject.target.given():
        name = getattr(extension, "name", None)
        good = isinstance(name, str) and bool(name)
        assert good, f"{type(extension).__name__}: name is {name!r}; set it to a text."


def check_methods_can_be_called_as_the_contract_says(subject: Subject) -> None:
    """Those that are there are called; none has to be, but one under another name never is."""
    contract = contract_of(subject.kind)
    methods = {
        name: value
        for name, value in vars(contract).items()
        if inspect.isfunction(value) and name[0] != "_"
    }
    for extension in subject.target.given():
        present = [name for name in methods if callable(getattr(extension, name, None))]
        says = any(hasattr(extension, name) for name in contract.__annotations__.keys() - {"name"})
        assert present or says, (
            f"{type(extension).__name__} has none of the methods {', '.join(methods)}; it would do "
            "nothing."
        )
        for name in present:
            assert_takes(type(extension), name, methods[name])


def check_every_request_ends(subject: Subject) -> None:
    """Every parked request is woken, none is held back forever, and none fails."""
    for ahead in (False, True):
        for tokens, reason in outcomes(subject, async_scheduling=ahead):
            assert reason in ("stop", "length", "abort"), (
                f"{_owner(subject)}: a request ended with {reason!r}: {tokens}."
            )


def check_what_was_held_is_given_back(subject: Subject) -> None:
    """After the last request no block is in use; blocks retained in `finished` are released."""
    with _engine(subject) as llm:
        _run(subject, llm)
        check_scheduler(llm.core.scheduler)
        usage = llm.core.scheduler.kv.usage
        parked = llm.core.scheduler.num_parked
        assert not usage, (
            f"{_owner(subject)}: {usage:.0%} of the blocks are still held when every request has "
            "ended."
        )
        assert not parked, (
            f"{_owner(subject)}: {parked} requests are parked when every request has ended."
        )


def check_tokens_are_the_same_again(subject: Subject) -> None:
    """In a second engine, a step ahead, and with so few blocks that requests are preempted: the
    same tokens.
    """
    expected = outcomes(subject)[:-1]  # but of the aborted one, which ends wherever it is
    for what, settings in (
        ("in a second engine", {}),
        ("a step ahead (async_scheduling)", {"async_scheduling": True}),
        ("with few blocks (preemption)", {"num_gpu_blocks_override": 17}),
    ):
        found = outcomes(subject, **settings)[:-1]
        assert found == expected, (
            f"{_owner(subject)}: {what}, {found} was generated, not {expected}."
        )


def check_tokens_do_not_depend_on_neighbours(subject: Subject) -> None:
    """What a request gets alone it gets among others."""
    together = outcomes(subject)
    for index in (0, 1):
        alone = outcomes(subject, [_PROMPTS[index]])
        assert alone[0] == together[index], (
            f"{_owner(subject)}: alone {alone[0]}, among others {together[index]}."
        )


def outcomes(
    subject: Subject, prompts: Sequence[list[int]] = _PROMPTS, **settings: Any
) -> list[Outcome]:
    """Return tokens and end of each prompt, in an engine of its own; the last of several is aborted
    on its way.
    """
    with _engine(subject, **settings) as llm:
        return _run(subject, llm, prompts)


def _run(subject: Subject, llm: LLM, prompts: Sequence[list[int]] = _PROMPTS) -> list[Outcome]:
    found: dict[str, Outcome] = {}
    idle = 0
    for index, prompt in enumerate(prompts):
        sampling = SamplingParams(
            temperature=0.7, seed=len(prompt), max_tokens=9, ignore_eos=True, detokenize=False
        )
        llm.add_request(str(index), {"prompt_token_ids": prompt}, sampling)
    for step in range(MAX_STEPS):
        for output in llm.step():
            if output.finished:
                found[output.request_id] = (
                    list(output.outputs[0].token_ids),
                    output.outputs[0].finish_reason,
                )
        if step == 6 and len(prompts) > 1:
            llm.abort(str(len(prompts) - 1))
            found.setdefault(str(len(prompts) - 1), ([], "abort"))
        idle = idle + 1 if llm.core.blocked else 0
        if idle > MAX_IDLE_STEPS or not llm.has_unfinished_requests():
            break
    lost = [index for index in range(len(prompts)) if str(index) not in found]
    assert not lost, (
        f"{_owner(subject)}: requests {lost} of {len(prompts)} have not ended: they wait for a "
        "wake, "
        "or for ever."
    )
    return [found[str(index)] for index in range(len(prompts))]


@contextmanager
def _engine(subject: Subject, **settings: Any) -> Iterator[LLM]:
    """Yield an engine of the fake model with the subject's plugin; raise `AssertionError` for what
    its halves did wrong.
    """
    point: ExtensionPoint = subject.target
    registry = load_plan(make_plan([point.word, _FAKE]))
    options = point.examples.get("EXAMPLE_OPTIONS", {})
    config = config_from_kwargs({**_SETTINGS, **options, **settings}, registry.options())
    breaches = watch(registry)
    with LLM.from_config(config, registry) as llm:
        yield llm
    assert not breaches, f"{_owner(subject)}: {breaches[0]}."


def _owner(subject: Subject) -> str:
    return f"the {EXTENSION_POINTS[subject.kind].noun} of {subject.entry.name!r}"
