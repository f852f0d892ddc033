"""Messages made from their declarations, to fuzz `sector.wire`: msgspec decodes in C, where a fuzzer
sees no branches, and mutated bytes hardly ever get past the first field. Here its bytes are choices, field by
field, within the bounds and just outside of them, and whether the message is valid is known beforehand.

`python tests/fuzz/message_shapes.py` writes an input for each type of message that has none."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import msgspec
from msgspec import inspect

from sector.wire import admin, base, files, login, slave, sphere

SPOKEN = (admin, files, login, slave, sphere)  # importing them fills the registry
REPLY = 0x8000
"""Added to the number of a request: its reply."""
BY_NUMBER: dict[int, type[base.Message]] = {
    **base.REGISTRY,
    **{number | REPLY: cls.REPLY for number, cls in base.REGISTRY.items()},
}
NUMBERS = sorted(BY_NUMBER)
MANY = 300
"""Lists grow to so many items, longer ones are made of one item."""
TEXTS = (
    *("", "a", "0" * 16, "file", "read", "any", "new", "record", "r", "rwx"),
    "running",
)
WRONG: tuple[object, ...] = (None, True, 1 << 63, -1, 1.5, "text", b"bytes", [], {}, [[]])


class Choices:
    """The fuzzer's bytes, one after the other; 0 when there are no more."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.valid = True
        self.nothing = False
        """Whether None may be a right value by now."""
        self.large = False
        """Whether a long list or text is in it, or being made: there is one in a message at most."""

    def take(self, count: int) -> int:
        """A number below `count`."""
        if self._at >= len(self._data):
            return 0
        self._at += 1
        return self._data[self._at - 1] % count


def type_of(data: bytes) -> type[base.Message]:
    """Which message is meant: its number in two bytes, else any."""
    number = int.from_bytes(data[:2], "big")
    return BY_NUMBER.get(number) or BY_NUMBER[NUMBERS[number % len(NUMBERS)]]


def text_for(shape: inspect.StrType) -> str:
    """A string of a pattern and at least the shortest length."""
    if shape.pattern is not None:
        return next(text for text in TEXTS if re.search(shape.pattern, text))
    return "a" * max(1, shape.min_length or 0)


def wrong(choices: Choices, fit: tuple[type, ...]) -> object:
    """A value of another type."""
    choices.valid = False
    others = [
        value
        for value in WRONG
        if not isinstance(value, fit) or (isinstance(value, bool) and bool not in fit)
        if value is not None or not choices.nothing
    ]
    return others[choices.take(len(others))]


def made(shape: inspect.Type, choices: Choices) -> object:
    """A value of the shape as msgpack would carry it, or one just outside of it."""
    match shape:
        case inspect.StructType():
            return made_struct(shape, choices)
        case inspect.IntType() | inspect.FloatType():
            return made_number(shape, choices)
        case inspect.StrType() | inspect.BytesType():
            return made_text(shape, choices)
        case inspect.ListType():
            return made_list(shape, choices)
        case inspect.TupleType():
            items = [made(item, choices) for item in shape.item_types]
            if choices.take(16) == 15:
                choices.valid = False
                return items[:-1] if choices.take(2) else [*items, 0]
            return items
        case inspect.DictType():
            if choices.take(8) == 7:
                return wrong(choices, (dict,))
            pairs: dict[object, object] = {}
            for _ in range(choices.take(4)):
                key = made(shape.key_type, choices)
                key = key if isinstance(key, str) else 0  # it is wrong, and 0 is, too
                if key not in pairs:  # else the value in front would be gone, wrong or not
                    pairs[key] = made(shape.value_type, choices)
            return pairs
        case inspect.BoolType():
            return wrong(choices, (bool,)) if choices.take(8) == 7 else bool(choices.take(2))
        case inspect.UnionType():
            choices.nothing = True
            return made(shape.types[choices.take(len(shape.types))], choices)
        case inspect.NoneType():
            return None
    raise TypeError(f"a field of a message of a new kind: {shape}")


def made_struct(shape: inspect.StructType, choices: Choices) -> object:
    """All fields, or the first ones, or more than there are."""
    how = choices.take(32)
    if how == 31:
        return wrong(choices, (list,))
    count = choices.take(len(shape.fields) + 1) if how == 30 else len(shape.fields)
    if any(field.required for field in shape.fields[count:]):
        choices.valid = False
    values = [made(field.type, choices) for field in shape.fields[:count]]
    return [*values, *WRONG[:7]] if how == 29 and count == len(shape.fields) else values


def made_number(shape: inspect.IntType | inspect.FloatType, choices: Choices) -> object:
    low = shape.ge if shape.ge is not None else -(1 << 63) if isinstance(shape, inspect.IntType) else -1e300
    high = (
        shape.le if shape.le is not None else (1 << 63) - 1 if isinstance(shape, inspect.IntType) else 1e300
    )
    how = choices.take(16)
    if how < 4:
        return low if how % 2 else high
    if how < 12:
        return max(low, min(high, choices.take(256) << (8 * choices.take(8))))
    choices.valid = False
    if how == 12 and shape.ge is not None:
        return low - 1 if abs(low) < 1e15 or isinstance(low, int) else low * 2
    if how == 13 and shape.le is not None:
        return high + 1 if abs(high) < 1e15 or isinstance(high, int) else high * 2
    if how == 14 and isinstance(shape, inspect.FloatType) and shape.le is not None:
        return (math.nan, math.inf, -math.inf)[choices.take(3)]
    return wrong(choices, (int, float))


def made_text(shape: inspect.StrType | inspect.BytesType, choices: Choices) -> object:
    is_text = isinstance(shape, inspect.StrType)
    how = choices.take(16)
    pattern = shape.pattern if isinstance(shape, inspect.StrType) else None
    most = shape.max_length
    if how == 15:
        return wrong(choices, (str, bytes))
    room = not choices.large and most is not None and most <= 1 << 16
    if how == 14 and room:
        choices.valid = False
        choices.large = True
        size = (most or 0) + 1
    elif how == 13 and (shape.min_length or 0) > 0:
        choices.valid = False
        size = (shape.min_length or 0) - 1
    elif how == 12 and is_text:
        choices.valid = False
        return msgspec.Raw(b"\xa2\xff\xfe")  # no UTF-8
    elif pattern is not None and isinstance(shape, inspect.StrType):
        return text_for(shape)
    elif how > 8 and room:
        choices.large = True
        size = most or 0
    else:
        size = max(shape.min_length or 0, min(most if most is not None else 99, choices.take(64)))
    character = "a/.é\0\n€\U0001f600"[choices.take(8)] if is_text else bytes([choices.take(256)])
    return character * size


def made_list(shape: inspect.ListType, choices: Choices) -> object:
    how = choices.take(16)
    most = shape.max_length if shape.max_length is not None else 1 << 30
    least = shape.min_length or 0
    if how == 15:
        return wrong(choices, (list,))
    if how >= 13 and most <= 1 << 16 and not choices.large:
        choices.large = True
        if how == 14:
            choices.valid = False
        return [made(shape.item_type, choices)] * (most + (how == 14))
    if how == 12 and least:
        choices.valid = False
        return [made(shape.item_type, choices) for _ in range(least - 1)]
    count = max(least, min(most, MANY, choices.take(5)))
    return [made(shape.item_type, choices) for _ in range(count)]


def message(data: bytes) -> tuple[type[base.Message], bytes, bool]:
    """(type, body, whether it is valid) that these choices make."""
    cls, choices = type_of(data), Choices(data[2:])
    value = made(inspect.type_info(cls), choices)
    return cls, msgspec.msgpack.encode(value), choices.valid


def write_inputs(folder: Path) -> None:
    """For each type the choices of nothing, as the bytes of its message."""
    known = set()
    for number in NUMBERS:
        cls = BY_NUMBER[number]
        if cls in known:
            continue
        known.add(cls)
        path = folder / f"{number:04x}-{cls.__name__}"
        if not path.exists():
            _, body, valid = message(number.to_bytes(2, "big"))
            assert valid
            path.write_bytes(number.to_bytes(2, "big") + body)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    write_inputs(Path(__file__).parent / "corpus" / "py_messages")
