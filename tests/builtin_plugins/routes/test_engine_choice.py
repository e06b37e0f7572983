"""Requests choose their engine by a field or a header."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.requests import Request

from builtin_plugins.routes.common.fields import feature_fields
from core.api import InvalidRequest
from core.api.features import KnownNames

NAMES = KnownNames(frozenset({"data_parallel_rank"}), {})


def request(rank: str | None) -> Request:
    headers = [] if rank is None else [(b"x-data-parallel-rank", rank.encode())]
    return Request({"type": "http", "headers": headers})


@pytest.mark.parametrize(
    ("fields", "header", "found"),
    [
        ({}, None, {}),
        ({}, "1", {"data_parallel_rank": 1}),
        ({"data_parallel_rank": 0}, None, {"data_parallel_rank": 0}),
        ({"data_parallel_rank": 0}, "1", {"data_parallel_rank": 0}),
    ],
)
def test_header_is_a_field_unless_the_body_has_it(
    fields: dict[str, Any], header: str | None, found: dict[str, Any]
) -> None:
    assert feature_fields(fields, NAMES, request(header)) == found


@pytest.mark.parametrize("header", ["-1", "one", "", "1e3", "9" * 400, "\u0663"])
def test_header_that_is_no_whole_number_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequest, match="x-data-parallel-rank: got"):
        feature_fields({}, NAMES, request(header))


def test_header_is_ignored_where_no_feature_reads_it() -> None:
    assert feature_fields({}, KnownNames(frozenset(), {}), request("one")) == {}
