"""What supervisor, spawner and worker say to each other over Unix sequenced-packet sockets.

One msgpack map a packet, at most `PACKET_MAX` bytes; open descriptors travel beside it. Small modules only:
the worker imports this one.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
from collections.abc import Sequence
from typing import Any

import msgspec

PACKET_MAX = 192 << 10
FDS_MAX = 200
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode
_encode = msgspec.msgpack.Encoder().encode


class Closed(Exception):
    """The other end is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends, close-on-exec."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(sock: socket.socket, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
    """One packet. Raises `Closed`, BlockingIOError (non-blocking socket, full), ValueError (too large)."""
    raw = _encode(message)
    if len(raw) > PACKET_MAX or len(fds) > FDS_MAX:
        raise ValueError(f"a packet of {len(raw)} bytes and {len(fds)} descriptors is too large")
    extra = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([raw], extra, socket.MSG_NOSIGNAL)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed(str(error)) from None


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One packet and its descriptors, which the caller owns (close-on-exec). Raises `Closed` at the end
    or on a malformed packet, BlockingIOError when there is none."""
    fds = array.array("i")
    try:
        raw, extra, flags, _ = sock.recvmsg(
            PACKET_MAX, socket.CMSG_SPACE(FDS_MAX * fds.itemsize), socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError as error:
        raise Closed(str(error)) from None
    for level, kind, data in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    received = list(fds)
    if not raw or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        close_all(received)
        raise Closed("end of the channel")
    try:
        return _decode(raw), received
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        close_all(received)
        raise Closed(f"malformed packet: {error}") from None


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors, ignoring those that are closed."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)
