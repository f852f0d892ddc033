"""What a request says of its signature is not remembered beyond measure: anybody may send some."""

from __future__ import annotations

import tracemalloc

from cumulus.auth.claims import parse_claim
from cumulus.errors import S3Error


def malformed(problem: str) -> S3Error:
    return S3Error("AuthorizationHeaderMalformed", problem)


def claim(number: int, length: int) -> None:
    """One with `length` characters of names."""
    names = f"host;{'x' * length}-{number}"
    parse_claim(f"KEY{number}/20261128/r/s3/aws4_request", names, "0" * 64, "20261128T000000Z", malformed)


def test_claims_of_strangers_take_no_room() -> None:
    """Many requests, each with names as long as a head may be."""
    claim(0, 10)
    tracemalloc.start()
    try:
        for number in range(1500):
            claim(number, 60_000)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 4 << 20
