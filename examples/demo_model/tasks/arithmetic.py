"""Addition and subtraction of numbers to three digits, worked out from the right: in a thought, or
in the answer.

A model this small cannot add in its head, so without thinking it shows its working before the
result.
"""

from __future__ import annotations

from typing import Final

from examples.demo_model.items import Draw, Item
from examples.demo_model.words import FOODS, THINGS, first_name

_PLUS: Final = (
    "What is {a} + {b}?",
    "What is {a} + {b}?",
    "{a} + {b}",
    "{a} + {b} =",
    "{a}+{b}",
    "{a} + {b} = ?",
    "Calculate {a} + {b}.",
    "Compute {a} + {b}",
    "How much is {a} + {b}?",
    "How much is {a} plus {b}?",
    "What is {a} plus {b}?",
    "what's {a} + {b}",
    "what is {a} + {b}?",
    "Add {a} and {b}.",
    "Please add {a} and {b}.",
    "What is the sum of {a} and {b}?",
    "Can you tell me what {a} + {b} is?",
)
_MINUS: Final = (
    "What is {a} - {b}?",
    "What is {a} - {b}?",
    "{a} - {b}",
    "{a} - {b} =",
    "{a}-{b}",
    "{a} - {b} = ?",
    "Calculate {a} - {b}.",
    "Compute {a} - {b}",
    "How much is {a} - {b}?",
    "How much is {a} minus {b}?",
    "What is {a} minus {b}?",
    "what's {a} - {b}",
    "what is {a} - {b}?",
    "Subtract {b} from {a}.",
    "Please take {b} away from {a}.",
    "Can you tell me what {a} - {b} is?",
)
_MORE: Final = (
    "{name} has {a} {things} and buys {b} more. How many {things} does {name} have?",
    "{name} has {a} {things} and gets {b} more. How many {things} does {name} have now?",
    "There are {a} {things} in one box and {b} in another. How many {things} does {name} have in "
    "both?",
)
_LESS: Final = (
    "{name} has {a} {things} and gives {b} away. How many {things} does {name} have?",
    "{name} has {a} {things} and loses {b} of them. How many {things} does {name} have now?",
)


def make(draw: Draw) -> Item:
    """Return one sum, as a plain question or a short story."""
    plus = draw.chance(0.5)
    a, b = draw.own(lambda: _operands(draw), lambda pair: _key(pair, plus))
    story = draw.chance(0.08)
    if story and not plus and a < b:
        a, b = b, a  # the result must not be negative; the key is the same
    result = a + b if plus else a - b
    if story:
        name = first_name(draw)
        things = draw.one([*FOODS, *THINGS]) + "s"
        question = draw.one(_MORE if plus else _LESS).format(a=a, b=b, name=name, things=things)
        answer = f"{name} has {result} {things}."
    else:
        question = draw.one(_PLUS if plus else _MINUS).format(a=a, b=b)
        answer = f"{a} {'+' if plus else '-'} {b} = {result}"
    working = added(a, b) if plus else subtracted(a, b)
    thinking = draw.chance(0.6)
    return Item(
        "arithmetic",
        (_key((a, b), plus),),
        [{"role": "user", "content": question}],
        answer if thinking else f"{working}\n\n{answer}",
        reasoning=working if thinking else "",
        thinking=thinking,
        variant="in a thought" if thinking else "thinking off",
    )


def _operands(draw: Draw) -> tuple[int, int]:
    def number() -> int:
        digits = draw.one((1, 2, 2, 3, 3, 3))
        return draw.number(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)

    return number(), number()


def _key(pair: tuple[int, int], plus: bool) -> str:
    """Return what both orders of a sum share: a difference and its opposite, too."""
    return f"{min(pair)}{'+' if plus else '-'}{max(pair)}"


def added(a: int, b: int) -> str:
    """Return the digit sums from the right; the result so far follows each colon."""
    lines = []
    carry = 0
    so_far = ""
    width = max(len(str(a)), len(str(b)))
    for digit_index in range(width):
        x = a // 10**digit_index % 10
        y = b // 10**digit_index % 10
        total = x + y + carry
        so_far = (str(total) if digit_index == width - 1 else str(total % 10)) + so_far
        lines.append(f"{x}+{y}{'+1' if carry else ''}={total}: {so_far}")
        carry = total // 10
    return "\n".join(lines)


def subtracted(a: int, b: int) -> str:
    """Return the digit differences from the right, the smaller number from the larger."""
    if a < b:
        return f"{a}<{b}: -({b}-{a})\n{subtracted(b, a)}"
    lines = []
    borrow = 0
    so_far = ""
    for digit_index in range(len(str(a))):
        x = a // 10**digit_index % 10
        y = b // 10**digit_index % 10
        rest = x - y - borrow
        digit = rest % 10
        so_far = f"{digit}{so_far}"
        lines.append(
            f"{x}-{y}{'-1' if borrow else ''}={rest}{f'+10={digit}' if rest < 0 else ''}: {so_far}"
        )
        borrow = int(rest < 0)
    return "\n".join(lines)
