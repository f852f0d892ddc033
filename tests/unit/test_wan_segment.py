"""Frames as network cards handle them (benchmarks/wan/segment.c): cut going out, joined coming in."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EACH = 1000
PIECE = 65536


class Heads(ctypes.Structure):
    _fields_ = [
        ("ip", ctypes.c_size_t),
        ("all", ctypes.c_size_t),
        ("tcp", ctypes.c_bool),
        ("v6", ctypes.c_bool),
    ]


class Frame(ctypes.Structure):
    _fields_ = [
        ("origin", ctypes.c_uint32),
        ("index", ctypes.c_uint16),
        ("sum_from", ctypes.c_uint16),
        ("sum_at", ctypes.c_uint16),
    ]


class Join(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_uint8 * PIECE),
        ("len", ctypes.c_size_t),
        ("n", ctypes.c_size_t),
        ("each", ctypes.c_size_t),
        ("heads", Heads),
        ("first", Frame),
        ("last", Frame),
        ("full", ctypes.c_bool),
    ]


def library() -> ctypes.CDLL:
    folder = Path(os.environ.get("SECTOR_BENCH_DIR") or ROOT / "csrc" / "build")
    lib = ctypes.CDLL(str(folder / "libwan.so"))
    lib.wan_heads_of.restype = lib.wan_join_add.restype = ctypes.c_bool
    lib.wan_cut.restype = lib.wan_cut_count.restype = ctypes.c_size_t
    size = ctypes.c_size_t
    lib.wan_heads_of.argtypes = [ctypes.c_void_p, ctypes.c_char_p, size]
    lib.wan_cut_count.argtypes = [ctypes.c_void_p, size, size]
    lib.wan_cut.argtypes = [
        ctypes.c_void_p,
        ctypes.c_char_p,
        size,
        size,
        size,
        ctypes.c_void_p,
        ctypes.c_void_p,
    ]
    lib.wan_sum_finish.argtypes = [ctypes.c_void_p, size, ctypes.c_void_p]
    lib.wan_join_add.argtypes = [ctypes.c_void_p, ctypes.c_char_p, size, ctypes.c_void_p]
    lib.wan_join_finish.argtypes = [ctypes.c_void_p]
    return lib


LIB = library()


def summed(data: bytes) -> int:
    """The Internet checksum's sum (RFC 1071); 0xffff over a packet whose checksum is right."""
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def piece(kind: str, payload: bytes) -> bytes:
    """A packet as a kernel hands it to a card: as long as it likes, checksums open."""
    tcp, v6 = kind[:3] == "tcp", kind[-1] == "6"
    if tcp:
        flags = 0x80 | 0x18  # CWR, PSH, ACK
        options = b"\1\1\x08\x0a" + bytes(8)
        inner = struct.pack("!HHIIBBHHH", 1, 2, 0xFFFFFE00, 7, 8 << 4, flags, 500, 0, 0) + options + payload
    else:
        inner = struct.pack("!HHHH", 1, 2, 0, 0) + payload
    if v6:
        ends = socket.inet_pton(socket.AF_INET6, "fd77::1") + socket.inet_pton(socket.AF_INET6, "fd77::2")
        return struct.pack("!IHBB", 6 << 28, 0, 6 if tcp else 17, 64) + ends + inner
    ends = socket.inet_aton("10.77.0.1") + socket.inet_aton("10.77.0.2")
    total = 20 + len(inner)
    return struct.pack("!BBHHHBBH", 0x45, 0, total, 0xFFFF, 0x4000, 64, 6 if tcp else 17, 0) + ends + inner


def cut(packet: bytes, origin: int = 1) -> tuple[Heads, list[tuple[bytes, Frame]]]:
    heads, frames = Heads(), []
    assert LIB.wan_heads_of(ctypes.byref(heads), packet, len(packet))
    for number in range(LIB.wan_cut_count(ctypes.byref(heads), len(packet), EACH)):
        room, frame = ctypes.create_string_buffer(2000), Frame(origin=origin)
        size = LIB.wan_cut(ctypes.byref(heads), packet, len(packet), EACH, number, room, ctypes.byref(frame))
        frames.append((room.raw[:size], frame))
    return heads, frames


def finished(data: bytes, frame: Frame) -> bytes:
    room = ctypes.create_string_buffer(data, len(data))
    LIB.wan_sum_finish(room, len(data), ctypes.byref(frame))
    return room.raw


def joined(frames: list[tuple[bytes, Frame]]) -> tuple[bytes, int]:
    """What is joined of frames in a row, and how many were taken."""
    join, taken = Join(), 0
    for data, frame in frames:
        if not LIB.wan_join_add(ctypes.byref(join), data, len(data), ctypes.byref(frame)):
            break
        taken += 1
    LIB.wan_join_finish(ctypes.byref(join))
    return bytes(join.data[: join.len]), taken


KINDS = ["udp4", "udp6", "tcp4", "tcp6"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_piece_becomes_frames_that_any_receiver_accepts(kind: str) -> None:
    payload = os.urandom(3 * EACH + 17)
    heads, frames = cut(piece(kind, payload))
    assert b"".join(data[heads.all :] for data, _ in frames) == payload and len(frames) == 4
    for number, (data, frame) in enumerate(frames):
        whole = finished(data, frame)
        inner = whole[heads.ip :]
        if heads.v6:
            assert struct.unpack("!H", whole[4:6])[0] == len(inner)
            ends, proto = whole[8:40], whole[6]
        else:
            assert struct.unpack("!H", whole[2:4])[0] == len(whole) and summed(whole[:20]) == 0xFFFF
            assert struct.unpack("!H", whole[4:6])[0] == (0xFFFF + number) % 0x10000
            ends, proto = whole[12:20], whole[9]
        assert summed(ends + struct.pack("!HH", proto, len(inner)) + inner) == 0xFFFF
        if heads.tcp:
            (seq,) = struct.unpack("!I", inner[4:8])
            assert seq == (0xFFFFFE00 + number * EACH) % 2**32
            assert inner[13] == 0x10 | (0x80 if number == 0 else 0) | (0x08 if number == 3 else 0)
        else:
            assert struct.unpack("!H", inner[4:6])[0] == len(inner)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_cut_joins_to_the_same_bytes(kind: str) -> None:
    packet = piece(kind, os.urandom(3 * EACH + 17))
    heads, frames = cut(packet)
    data, taken = joined(frames)
    assert taken == 4 and data[heads.all :] == packet[heads.all :]
    part, taken = joined(frames[1:3])
    assert taken == 2 and part[heads.all :] == packet[heads.all + EACH : heads.all + 3 * EACH]
    if heads.tcp:  # the checksum field alone differs: it was open, now it holds the pseudo-header's sum
        at = heads.ip + 16
        assert data[heads.ip : at] == packet[heads.ip : at]
    again = [data for data, _ in cut(data)[1]]
    assert again == [data for data, _ in frames]


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_follows_is_joined(kind: str) -> None:
    _, frames = cut(piece(kind, os.urandom(3 * EACH + 17)))
    _, other = cut(piece(kind, os.urandom(3 * EACH + 17)), origin=2)
    assert joined([frames[0], frames[2]])[1] == 1  # one was lost
    assert joined([frames[0], frames[0]])[1] == 1  # a copy
    assert joined([frames[0], other[1]])[1] == 1  # of another piece
    assert joined([frames[3], frames[0]])[1] == 1  # the short one was the last
    alone = (frames[1][0], Frame())
    assert joined([frames[0], alone])[1] == 1 and joined([alone, frames[2]])[1] == 1


def test_what_is_no_whole_packet_has_no_heads() -> None:
    heads = Heads()
    good = piece("udp4", b"x" * 100)
    fragment = good[:6] + b"\x20\x00" + good[8:]
    icmp = good[:9] + b"\1" + good[10:]
    short_tcp = piece("tcp4", b"")[:30]
    endless = bytearray(piece("tcp6", b"x"))
    endless[52] = 0xF0  # a header longer than the packet
    for bad in (b"", b"\x45", good[:27], fragment, icmp, short_tcp, bytes(endless), b"\x75" + good[1:]):
        assert not LIB.wan_heads_of(ctypes.byref(heads), bad, len(bad)), bad
