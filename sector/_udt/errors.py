"""The one translator of the core's error codes (csrc/include/udt_err.h) to exceptions."""

from __future__ import annotations

import os

from sector._udt._ffi import ffi, lib


class CoreError(Exception):
    """A call into the core failed. `code` is the negative udt_err value, `name` its name without
    the prefix (such as "AGAIN")."""

    def __init__(self, code: int, where: str = "", sys_err: int = 0) -> None:
        self.code = code
        self.name = error_name(code)
        text: str = ffi.string(lib.udt_err_text(code)).decode()
        if sys_err:
            text += f" ({os.strerror(sys_err)})"
        super().__init__(f"{where}: {text}" if where else text)


def error_name(code: int) -> str:
    """ "AGAIN" for UDT_E_AGAIN; "OK" for 0."""
    name: str = ffi.string(lib.udt_err_name(code)).decode()
    return name.removeprefix("UDT_E_").removeprefix("UDT_")


def error_text(code: int) -> str:
    """One line of text for a code."""
    text: str = ffi.string(lib.udt_err_text(code)).decode()
    return text


def check(result: int, where: str = "") -> int:
    """`result` if it is not negative, else raises CoreError."""
    if result < 0:
        raise CoreError(result, where)
    return result
