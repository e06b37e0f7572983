"""What every scheduler half must keep: the checks of all halves, in an engine of the fake model."""

from core.testing.conformance.extensions import (
    check_every_request_ends,
    check_has_a_name,
    check_methods_can_be_called_as_the_contract_says,
    check_tokens_are_the_same_again,
    check_what_was_held_is_given_back,
)

__all__ = [
    "check_every_request_ends",
    "check_has_a_name",
    "check_methods_can_be_called_as_the_contract_says",
    "check_tokens_are_the_same_again",
    "check_what_was_held_is_given_back",
]
