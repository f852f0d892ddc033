"""The stored inputs of the fuzzers of Python's parsers, without a fuzzer; and what these have found."""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from effort import effort
from hypothesis import given
from hypothesis import strategies as st

from sector.config import parse_config
from sector.errors import BadConfig, Damaged
from sector.master.replication import parse_rules
from sector.master.topology import parse_topology
from sector.sphere.shuffle import decode_entries
from sector.wire.base import decode

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
INPUTS = sorted((FUZZ / "corpus").glob("*/*"))


@pytest.fixture(scope="module")
def targets() -> Any:
    """tests/fuzz/targets.py."""
    spec = importlib.util.spec_from_file_location("fuzz_targets", FUZZ / "targets.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FUZZ))  # it has a neighbour
        spec.loader.exec_module(module)
    return module


def test_every_target_has_inputs(targets: Any) -> None:
    """And every folder of inputs a target."""
    assert {path.parent.name for path in INPUTS} == set(targets.TARGETS)


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_input(path: Path, targets: Any) -> None:
    """Nothing but the promised error comes out."""
    targets.TARGETS[path.parent.name](path.read_bytes())


def test_every_message_has_an_input_that_is_valid(targets: Any) -> None:
    """Named by its number: new messages do not turn the stored ones into others."""
    shapes = targets.sector_targets.message_shapes
    valid = set()
    for path in (FUZZ / "corpus" / "py_messages").iterdir():
        stored = path.read_bytes()
        cls = shapes.type_of(stored)
        assert path.name == f"{int.from_bytes(stored[:2], 'big'):04x}-{cls.__name__}"
        decode(cls, stored[2:])
        valid.add(cls)
    assert valid == set(shapes.BY_NUMBER.values()), "run tests/fuzz/message_shapes.py"


@effort(2000)
@given(number=st.integers(0, 0xFFFF), choices=st.binary(max_size=200))
def test_messages_are_taken_within_their_bounds_and_refused_outside(
    targets: Any, number: int, choices: bytes
) -> None:
    shapes = targets.sector_targets.message_shapes
    targets.TARGETS["py_messages"](shapes.NUMBERS[number % len(shapes.NUMBERS)].to_bytes(2, "big") + choices)


@pytest.mark.parametrize("text", ["a=" + "[" * 20_000, "a=" + "{a=" * 5_000, "a=" + "9" * 5_000])
def test_settings_that_python_will_not_read_are_one_line(text: str) -> None:
    """Nested without end, and numbers of thousands of digits."""
    with pytest.raises(BadConfig, match="not valid TOML: "):
        parse_config(text, "slave", "/etc/x.toml")
    with pytest.raises(BadConfig, match="not valid TOML: "):
        parse_topology(text)
    with pytest.raises(BadConfig, match="not valid TOML: "):
        parse_rules(text)


def test_a_ledger_line_of_another_form_is_damage() -> None:
    """Though its sum is right: written by another version, or by somebody else."""
    body = msgspec.msgpack.encode({"segment": "one"})
    line = b"SLG1" + len(body).to_bytes(4, "little") + zlib.crc32(body).to_bytes(4, "little") + body
    with pytest.raises(Damaged, match="at byte 0"):
        decode_entries(line)
