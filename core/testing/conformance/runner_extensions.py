"""What every worker half must keep: the checks of all halves, and that rows do not meet in it."""

from core.testing.conformance.extensions import (
    check_every_request_ends,
    check_has_a_name,
    check_methods_can_be_called_as_the_contract_says,
    check_tokens_are_the_same_again,
    check_tokens_do_not_depend_on_neighbours,
)

__all__ = [
    "check_every_request_ends",
    "check_has_a_name",
    "check_methods_can_be_called_as_the_contract_says",
    "check_tokens_are_the_same_again",
    "check_tokens_do_not_depend_on_neighbours",
]
