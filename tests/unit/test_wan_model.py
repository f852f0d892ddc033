"""The emulator's model of a link (benchmarks/wan/link.c), driven in virtual time."""

from __future__ import annotations

import ctypes
import os
import statistics
import struct
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000
FRAME = 1500
WIRE = 1538
COUNTS = [
    *("in_frames", "in_bytes", "out_frames", "out_bytes", "drop_queue", "drop_loss", "drop_burst"),
    *(
        "drop_memory",
        "reordered",
        "duplicated",
        "corrupted",
        "max_queue_frames",
        "max_queue_bytes",
        "queue_ns",
    ),
]


class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int64) for name in COUNTS]


def library() -> ctypes.CDLL:
    folder = Path(os.environ.get("SECTOR_BENCH_DIR") or ROOT / "csrc" / "build")
    lib = ctypes.CDLL(str(folder / "libwan.so"))
    lib.wan_link_new.restype = ctypes.c_void_p
    lib.wan_link_new.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t]
    lib.wan_link_free.argtypes = [ctypes.c_void_p]
    lib.wan_link_room.restype = ctypes.c_void_p
    lib.wan_link_room.argtypes = [ctypes.c_void_p]
    lib.wan_link_offer.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_void_p]
    lib.wan_link_due.restype = ctypes.c_int64
    lib.wan_link_due.argtypes = [ctypes.c_void_p]
    lib.wan_link_take.restype = ctypes.c_void_p
    lib.wan_link_take.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_size_t),
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_void_p,
    ]
    lib.wan_link_counts.restype = ctypes.POINTER(Counts)
    lib.wan_link_counts.argtypes = [ctypes.c_void_p]
    lib.wan_spec_finish.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    for parse in (lib.wan_spec_parse, lib.wan_flow_parse):
        parse.restype = ctypes.c_bool
        parse.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
    return lib


LIB = library()


def udp_packet(number: int, source: int = 5000, target: int = 6000) -> bytes:
    """An IPv4 packet of 1500 bytes that carries its number."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, FRAME, 0, 0, 64, 17, 0, b"\0" * 4, b"\0" * 4)
    body = struct.pack("!HHHHQ", source, target, FRAME - 20, 0, number)
    return (head + body).ljust(FRAME, b"\0")


class Link:
    """One direction; delivers (time ns, number)."""

    def __init__(
        self, text: str, flows: tuple[str, ...] = (), back_ms: int = 0, slots: int = 200_000
    ) -> None:
        spec, err = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(200)
        assert LIB.wan_spec_parse(spec, text.encode(), err, 200), err.value
        for flow in flows:
            assert LIB.wan_flow_parse(spec, flow.encode(), err, 200), err.value
        LIB.wan_spec_finish(spec, back_ms * MS)
        self.link = LIB.wan_link_new(spec, 2000, slots)
        assert self.link

    def offer(self, now: int, packet: bytes) -> None:
        room = LIB.wan_link_room(self.link)
        assert room
        ctypes.memmove(room, packet, len(packet))
        LIB.wan_link_offer(self.link, now, len(packet), None)

    def drain(self, now: int = 1 << 62) -> list[tuple[int, int]]:
        length, due, got = ctypes.c_size_t(), ctypes.c_int64(), []
        while (at := LIB.wan_link_take(self.link, now, length, due, None)) is not None:
            data = ctypes.string_at(at, length.value)
            got.append((due.value, struct.unpack("!Q", data[28:36])[0]))
        return got

    @property
    def counts(self) -> Counts:
        value: Counts = LIB.wan_link_counts(self.link).contents
        return value


@pytest.fixture
def made() -> Iterator[list[Link]]:
    links: list[Link] = []
    yield links
    for link in links:
        LIB.wan_link_free(link.link)


def build(made: list[Link], *args: object, **more: object) -> Link:
    made.append(Link(*args, **more))  # type: ignore[arg-type]
    return made[-1]


def test_frames_leave_at_the_rate_and_arrive_after_the_delay(made: list[Link]) -> None:
    """1 Gb/s: a frame of 1538 bytes on the wire every 12.304 us."""
    link = build(made, "rate=1g,delay=10ms,queue=5000f")
    for number in range(1000):
        link.offer(0, udp_packet(number))
    got = link.drain()
    assert [number for _, number in got] == list(range(1000))
    assert [at for at, _ in got] == [10 * MS + 12_304 * (n + 1) for n in range(1000)]


def test_odd_rates_lose_no_time(made: list[Link]) -> None:
    """Parts of nanoseconds are kept: after a second the line is where it should be."""
    link = build(made, "rate=777m,queue=100000f")
    for number in range(60_000):
        link.offer(0, udp_packet(number))
    last = link.drain()[-1][0]
    assert abs(last - 60_000 * WIRE * 8 / 777e6 * 1e9) < 2


def test_the_queue_is_one_bdp_of_both_ways_unless_said(made: list[Link]) -> None:
    link = build(made, "rate=100m,delay=10ms", back_ms=30)
    for number in range(1000):
        link.offer(0, udp_packet(number))
    room = int(100e6 / 8 * 0.04) // WIRE
    assert len(link.drain()) == room
    assert link.counts.drop_queue == 1000 - room and link.counts.max_queue_frames == room


def test_a_queue_of_frames_or_bytes_drops_the_rest_and_empties_in_time(made: list[Link]) -> None:
    for text, room in (("queue=100f", 100), ("queue=154kb", 100)):
        link = build(made, f"rate=1g,delay=1ms,{text}")
        for number in range(300):
            link.offer(0, udp_packet(number))
        assert link.counts.drop_queue == 200
        link.offer(50 * 12_304, udp_packet(999))  # half is gone by now
        assert link.counts.drop_queue == 200 and len(link.drain()) == room + 1


def test_random_loss_is_as_asked_and_the_seed_repeats_it(made: list[Link]) -> None:
    runs = []
    for _ in range(2):
        link = build(made, "rate=0,loss=1%", slots=100_000)
        for number in range(100_000):
            link.offer(number, udp_packet(number))
            link.drain(number)
        runs.append(link.counts.drop_loss)
    assert runs[0] == runs[1] and 850 < runs[0] < 1150


def test_bursts_have_the_mean_loss_and_length(made: list[Link]) -> None:
    """Gilbert-Elliott: 1 % in bursts of 8 frames on average."""
    link = build(made, "rate=0,burst=1%:8", slots=1000)
    arrived = set()
    for number in range(300_000):
        link.offer(number, udp_packet(number))
        arrived |= {got for _, got in link.drain(number)}
    lost = [number for number in range(300_000) if number not in arrived]
    bursts = 1 + sum(1 for a, b in pairwise(lost) if b != a + 1)
    assert len(lost) == link.counts.drop_burst
    assert 0.008 < len(lost) / 300_000 < 0.012
    assert 7 < len(lost) / bursts < 9


def test_jitter_is_bounded_and_keeps_the_order_where_asked(made: list[Link]) -> None:
    for order in ("free", "keep"):
        link = build(made, f"rate=0,delay=50ms,jitter=20ms,order={order}")
        for number in range(5000):
            link.offer(number * MS, udp_packet(number))
        got = link.drain()
        late = [at - number * MS for at, number in got]
        assert min(late) >= 30 * MS and max(late) <= 70 * MS
        in_order = all(a[1] < b[1] for a, b in pairwise(got))
        assert in_order == (order == "keep")
        assert in_order or statistics.pstdev(late) > 11 * MS


def test_held_back_frames_overtake_nothing_and_copies_arrive(made: list[Link]) -> None:
    link = build(made, "rate=0,delay=1ms,reorder=10%:5ms,dup=5%")
    for number in range(10_000):
        link.offer(number * 1000, udp_packet(number))
    got = link.drain()
    late = {at - number * 1000 for at, number in got}
    assert late == {1 * MS, 6 * MS}
    assert 850 < link.counts.reordered < 1150
    assert len(got) == 10_000 + link.counts.duplicated and 400 < link.counts.duplicated < 600


def test_corruption_flips_one_bit(made: list[Link]) -> None:
    link = build(made, "rate=0,corrupt=100%")
    link.offer(0, udp_packet(0))
    length, due = ctypes.c_size_t(), ctypes.c_int64()
    data = ctypes.string_at(LIB.wan_link_take(link.link, 1 << 62, length, due, None), FRAME)
    changed = [a ^ b for a, b in zip(data, udp_packet(0), strict=True) if a != b]
    assert len(changed) == 1 and changed[0].bit_count() == 1


def test_flows_share_the_queue_but_not_the_delay(made: list[Link]) -> None:
    link = build(made, "rate=1g,delay=1ms,queue=10f", ("port=7001,rtt=20ms", "port=7002,rtt=200ms"))
    for number in range(12):
        link.offer(0, udp_packet(number, target=7001 + number % 2))
    got = {number: at for at, number in link.drain()}
    assert link.counts.drop_queue == 2 and set(got) == set(range(10))
    assert got[0] == 12_304 + 10 * MS and got[1] == 2 * 12_304 + 100 * MS
    link.offer(10**9, udp_packet(50, source=7002))  # the way back
    assert link.drain()[0][0] == 10**9 + 12_304 + 100 * MS


def test_memory_is_bounded(made: list[Link]) -> None:
    """When every slot is under way the frame is refused, and counted by the caller."""
    link = build(made, "rate=0,delay=1s", slots=10)
    for number in range(10):
        link.offer(0, udp_packet(number))
    assert LIB.wan_link_room(link.link) is None
    assert len(link.drain()) == 10 and LIB.wan_link_room(link.link)


@pytest.mark.parametrize(
    "text",
    [
        "rate=1x",
        "rate",
        "delay=5",
        "loss=200%",
        "loss=-1%",
        "burst=1%",
        "ge=1%",
        "ge=1%:0",
        "queue=0f",
        "queue=1",
        "order=none",
        "speed=1g",
        "rtt=999999s",
        "jitter=2",
        "reorder=1%:5",
        "rate=1",
        "a=" + "x" * 600,
        "loss=nan",
    ],
)
def test_what_is_no_link_is_refused_with_its_text(text: str) -> None:
    spec, err = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(200)
    assert not LIB.wan_spec_parse(spec, text.encode(), err, 200)
    assert err.value


@pytest.mark.parametrize(
    "text", ["port=0,rtt=1ms", "port=70000,rtt=1ms", "rtt=1ms", "port=5", "port=5,loss=1%"]
)
def test_what_is_no_flow_is_refused(text: str) -> None:
    spec, err = ctypes.create_string_buffer(4096), ctypes.create_string_buffer(200)
    assert not LIB.wan_flow_parse(spec, text.encode(), err, 200)
