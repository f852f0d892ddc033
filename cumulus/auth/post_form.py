"""Bodies of POST forms: multipart/form-data in pieces in, fields and the file's bytes out. Sans-IO, bounded.

The fields that come before the file are kept, the file passes through as slices of the buffers that came, and
what follows the file is ignored, as in S3. Field names are lower case; ${filename} in a field's value is the
name that the browser gave, without directories.
Source: RFC 7578; Amazon S3 API reference, "Browser-based uploads using POST".
"""

from __future__ import annotations

import re
from typing import Final

from cumulus.errors import S3Error

MAX_FIELDS_SIZE: Final = 20 * 1024  # bytes before the file, as in S3
MAX_FIELDS: Final = 100
_BOUNDARY: Final = re.compile(
    r'multipart/form-data\s*;(?:[^"]*;)?\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))\s*(?:;|$)',
    re.IGNORECASE,
)
_PARAMETER: Final = re.compile(r';\s*([a-z]+\*?)=(?:"((?:[^"\\]|\\.)*)"|([^;\s"]*))', re.I)
# not expanded: what signatures are made of
_VERBATIM: Final = frozenset({"policy", "signature", "x-amz-signature"})


def is_form(content_type: str) -> bool:
    """Whether a POST with this Content-Type is a form."""
    return content_type.lower().startswith("multipart/form-data")


def _malformed(message: str) -> S3Error:
    return S3Error("MalformedPOSTRequest", f"The body of your POST request is not well-formed: {message}")


class FormDecoder:
    """One form. `fields` are complete when `ready` is true, which it becomes with the first byte after the
    file part's head; `filename` and `file_type` are that part's. Raises `S3Error` MalformedPOSTRequest for a
    Content-Type without a boundary."""

    def __init__(self, content_type: str) -> None:
        match = _BOUNDARY.match(content_type)
        if match is None:
            raise _malformed("its Content-Type has no boundary.")
        self._delimiter = b"\r\n--" + (match[1] or match[2]).encode("latin-1", "replace")
        self._search = re.compile(re.escape(self._delimiter)).search
        self._head = bytearray(b"\r\n")
        self._at = 0  # where in the head the next delimiter is searched
        self._held = b""  # bytes of the file that may begin the delimiter
        self._tail = bytearray()
        self.fields: dict[str, str] = {}
        self.filename = ""
        self.file_type = ""
        self.ready = False
        self._ended = False

    def feed(self, data: memoryview) -> list[memoryview]:
        """The file's bytes among `data`. Raises `S3Error` MalformedPOSTRequest, MaxPostPreDataLengthExceeded,
        InvalidArgument (no file, or a field twice)."""
        out: list[memoryview] = []
        if not self.ready:
            taken = min(len(data), MAX_FIELDS_SIZE - len(self._head))
            self._head += data[:taken]
            if not self._read_head():
                if len(self._head) >= MAX_FIELDS_SIZE:
                    raise S3Error("MaxPostPreDataLengthExceeded")
                return out
            rest = bytes(self._head[self._at :])
            self._head.clear()
            self._file(memoryview(rest), out)
            data = data[taken:]
        self._file(data, out)
        return out

    def finish(self) -> None:
        """The body is complete. Raises `S3Error` when the form is not."""
        if not self.ready:
            raise _malformed("it ends before the file.")
        if not self._ended or len(self._tail) < 2:
            raise S3Error("IncompleteBody", "The form ends within the file.")

    # before the file

    def _read_head(self) -> bool:
        """Take in whole fields; true when the file's bytes begin at `_at`."""
        while (part := self._next_part()) is not None:
            name, filename, file_type, begin = part
            if name == "file":
                self.filename, self.file_type, self._at = filename, file_type, begin
                self.ready = True
                self.fields = {key: self._expand(key, value) for key, value in self.fields.items()}
                return True
            # an empty value's delimiter begins with the line end of its head
            end = self._head.find(self._delimiter, begin - 2)
            if end < 0:
                return False
            self._add(name, bytes(self._head[begin : max(begin, end)]))
            self._at = end
        return False

    def _next_part(self) -> tuple[str, str, str, int] | None:
        """Name, file name, type and first byte of the part whose delimiter is at or after `_at`; None when
        it is not all there."""
        start = self._head.find(self._delimiter, self._at)
        after = start + len(self._delimiter)
        if start < 0 or len(self._head) < after + 2:
            return None
        if self._head[after : after + 2] == b"--":
            raise S3Error("InvalidArgument", "POST requires exactly one file upload per request.",
                          fields={"ArgumentName": "file", "ArgumentValue": "0"})  # fmt: skip
        end = self._head.find(b"\r\n\r\n", after)
        if end < 0:
            return None
        return (*_part_head(bytes(self._head[after:end])), end + 4)

    def _add(self, name: str, value: bytes) -> None:
        if name in self.fields or len(self.fields) >= MAX_FIELDS:
            raise S3Error(
                "InvalidArgument", f"The form's field {name[:64]} is there twice, or there are too many."
            )
        try:
            self.fields[name] = value.decode()
        except UnicodeDecodeError:
            raise _malformed(f"the field {name[:64]} is not UTF-8.") from None

    def _expand(self, name: str, value: str) -> str:
        return value if name in _VERBATIM else value.replace("${filename}", self.filename)

    # the file

    def _file(self, data: memoryview, out: list[memoryview]) -> None:
        """Bytes of the file up to its delimiter."""
        if self._ended:
            self._epilogue(data)
            return
        size = len(self._delimiter)
        if self._held:
            data = self._resume(data, out, size)
            if self._held or self._ended:
                return
        match = self._search(data)
        if match is not None:
            self._emit(data[: match.start()], out)
            self._ended = True
            self._epilogue(data[match.end() :])
            return
        keep = self._beginning(bytes(data[-(size - 1) :]))
        self._emit(data[: len(data) - keep], out)
        self._held = bytes(data[len(data) - keep :])

    def _resume(self, data: memoryview, out: list[memoryview], size: int) -> memoryview:
        """Decide about what was held back; returns what is left of `data`."""
        window = self._held + bytes(data[: size - 1])
        at = window.find(self._delimiter)
        if at >= 0:
            self._emit(memoryview(window)[:at], out)
            used = at + size - len(self._held)
            self._held, self._ended = b"", True
            self._epilogue(data[used:])
            return data[:0]
        if len(data) < size - 1:
            keep = self._beginning(window[-(size - 1) :])
            self._emit(memoryview(window)[: len(window) - keep], out)
            self._held = window[len(window) - keep :]
            return data[:0]
        self._emit(memoryview(self._held), out)
        self._held = b""
        return data

    def _beginning(self, tail: bytes) -> int:
        """How many of the last bytes may be the beginning of a delimiter."""
        return next((n for n in range(len(tail), 0, -1) if self._delimiter.startswith(tail[-n:])), 0)

    @staticmethod
    def _emit(piece: memoryview, out: list[memoryview]) -> None:
        if len(piece):
            out.append(piece)

    def _epilogue(self, data: memoryview) -> None:
        """After the file's delimiter: the end, or parts that are ignored."""
        if len(self._tail) < 2:
            self._tail += data[: 2 - len(self._tail)]
            if len(self._tail) == 2 and bytes(self._tail) not in (b"--", b"\r\n"):
                raise _malformed("a boundary is followed by something else.")


def _part_head(head: bytes) -> tuple[str, str, str]:
    """Field name (lower case), file name and type of a part."""
    try:
        lines = head.decode().split("\r\n")
    except UnicodeDecodeError:
        raise _malformed("a part's head is not UTF-8.") from None
    if lines[0].strip(" \t"):
        raise _malformed("a boundary is followed by something else.")
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise _malformed("a part's header has no colon.")
        headers[name.strip().lower()] = value.strip()
    kind, semicolon, rest = headers.get("content-disposition", "").partition(";")
    found = {match[1].lower(): _plain(match) for match in _PARAMETER.finditer(semicolon + rest)}
    if kind.strip().lower() != "form-data" or not found.get("name"):
        raise _malformed("a part has no name.")
    filename = re.split(r"[/\\]", found.get("filename", ""))[-1]
    return found["name"].lower(), filename, headers.get("content-type", "")


def _plain(match: re.Match[str]) -> str:
    return match[3] if match[2] is None else match[2].replace('\\"', '"')
