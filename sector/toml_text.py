"""Settings as TOML text, as far as they are written and not only read."""

from __future__ import annotations

from typing import Any


def to_toml(values: dict[str, Any]) -> str:
    """`key = value` lines for texts, numbers, truth values and lists of texts."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in values.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    text = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in text) + '"'


def to_section(name: str, body: dict[str, Any]) -> str:
    """A section `[name]` of what `to_toml` knows and of lists of tables, these behind all else."""
    tables = {key: value for key, value in body.items() if isinstance(value, list) and _is_table(value)}
    text = f"[{name}]\n" + to_toml({key: value for key, value in body.items() if key not in tables})
    rows = [(key, row) for key, value in tables.items() for row in value]
    return text + "".join(f"\n[[{name}.{key}]]\n{to_toml(row)}" for key, row in rows)


def _is_table(value: list[Any]) -> bool:
    return bool(value) and all(isinstance(row, dict) for row in value)
