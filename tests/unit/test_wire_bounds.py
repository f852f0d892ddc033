"""Every field of a request that a peer fills has a bound that is checked when it is decoded."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from sector.wire import admin, base, files, login, slave, sphere

SPOKEN = (admin, files, login, slave, sphere)  # importing them fills the registry
OF_SLAVES = [
    cls.REPLY
    for cls in base.REGISTRY.values()
    if cls.__module__ == sphere.__name__ or cls in (slave.PrepareWrite, slave.Scrub, slave.Forwarded)
]
FROM_MASTERS = {sphere.JobStarted, sphere.JobInfo, sphere.JobTable, sphere.JobOrder}
STRANGERS = sorted({*base.REGISTRY.values(), *OF_SLAVES} - FROM_MASTERS, key=str)


def unbounded(shape: inspect.Type, path: str) -> Iterator[str]:
    """Fields below `path` that may be of any size."""
    match shape:
        case inspect.StructType():
            for field in shape.fields:
                yield from unbounded(field.type, f"{path}.{field.name}")
        case inspect.IntType():
            if shape.ge is None:
                yield path
        case inspect.FloatType():
            if shape.ge is None or shape.le is None:  # a bound keeps NaN and infinity out, too
                yield path
        case inspect.StrType() | inspect.BytesType():
            if shape.max_length is None and not getattr(shape, "pattern", None):
                yield path
        case inspect.ListType():
            if shape.max_length is None:
                yield path
            yield from unbounded(shape.item_type, f"{path}[]")
        case inspect.TupleType():
            for number, item in enumerate(shape.item_types):
                yield from unbounded(item, f"{path}[{number}]")
        case inspect.DictType():
            if shape.max_length is None:
                yield path
            yield from unbounded(shape.key_type, f"{path} key")
            yield from unbounded(shape.value_type, f"{path} value")
        case inspect.UnionType():
            for item in shape.types:
                yield from unbounded(item, path)
        case inspect.BoolType() | inspect.NoneType():
            pass
        case _:
            yield f"{path}: {type(shape).__name__}"


@pytest.mark.parametrize("cls", STRANGERS, ids=lambda cls: cls.__name__)
def test_all_that_strangers_say_is_bounded(cls: type[msgspec.Struct]) -> None:
    assert list(unbounded(inspect.type_info(cls), cls.__name__)) == []
