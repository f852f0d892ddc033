"""Conditional requests: If-Match, If-None-Match, If-Modified-Since, If-Unmodified-Since. Pure.

Source: RFC 9110, section 13; Amazon S3, "conditional requests" for reads, writes, copies and deletes.
"""

from __future__ import annotations

from dataclasses import dataclass

from cumulus.errors import S3Error

SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Conditions:
    """Empty or None where a condition was not made. Lists of ETags are without quotes, "*" is any object;
    times are nanoseconds, compared by whole seconds as HTTP dates are."""

    match: tuple[str, ...] = ()
    none_match: tuple[str, ...] = ()
    modified_since_ns: int | None = None
    unmodified_since_ns: int | None = None
    size: int | None = None
    exact_modified_ns: int | None = None

    def __bool__(self) -> bool:
        return self != NONE

    @property
    def compares(self) -> bool:
        """Whether the answer tells something of the object, and not only if there is one."""
        return (
            self.match not in ((), ("*",))
            or self.none_match not in ((), ("*",))
            or (self.unmodified_since_ns, self.size, self.exact_modified_ns) != (None, None, None)
        )

    def check_read(self, etag: str, modified_ns: int, *, copy: bool = False) -> None:
        """Raises PreconditionFailed, or NotModified (for the source of a copy PreconditionFailed too)."""
        if self.match:
            if not _fits(self.match, etag):
                raise S3Error("PreconditionFailed", fields={"Condition": "If-Match"})
        elif self.unmodified_since_ns is not None and _later(modified_ns, self.unmodified_since_ns):
            raise S3Error("PreconditionFailed", fields={"Condition": "If-Unmodified-Since"})
        if self.none_match:
            unchanged, name = _fits(self.none_match, etag), "If-None-Match"
        else:
            since = self.modified_since_ns
            unchanged, name = since is not None and not _later(modified_ns, since), "If-Modified-Since"
        if unchanged:
            raise S3Error("PreconditionFailed" if copy else "NotModified", fields={"Condition": name})

    def check_write(self, there: tuple[str, int, int] | None) -> None:
        """`there` is (etag, modified_ns, size) of the current object or None. Raises PreconditionFailed, or
        NoSuchKey for If-Match where there is nothing. If-Modified-Since is for GET and HEAD alone."""
        if there is None:
            if self.match or self.size is not None or self.exact_modified_ns is not None:
                raise S3Error("NoSuchKey")
            return
        etag, modified_ns, size = there
        failed = ""
        if self.match and not _fits(self.match, etag):
            failed = "If-Match"
        elif self.none_match and _fits(self.none_match, etag):
            failed = "If-None-Match"
        elif self.unmodified_since_ns is not None and _later(modified_ns, self.unmodified_since_ns):
            failed = "If-Unmodified-Since"
        elif self.size is not None and self.size != size:
            failed = "x-amz-if-match-size"
        elif self.exact_modified_ns is not None and _seconds(modified_ns) != _seconds(self.exact_modified_ns):
            failed = "x-amz-if-match-last-modified-time"
        if failed:
            raise S3Error("PreconditionFailed", fields={"Condition": failed})


NONE = Conditions()


def _seconds(ns: int) -> int:
    return ns // SECOND_NS


def _later(a_ns: int, b_ns: int) -> bool:
    return _seconds(a_ns) > _seconds(b_ns)


def _fits(wanted: tuple[str, ...], etag: str) -> bool:
    return "*" in wanted or etag in wanted
