"""Both directions against Debian's libudt 4.11, through real loopback ports and the relay's faults.

Roles x mode x eight networks (spec/tests.md R3; `./dev soak R3` repeats it); three networks in both
directions (streams to 64 MB clean, 8 MB at 1 % loss, 1 MB at 5 % with reordering; messages to 8 MB in
order), the others in one, by turns. What arrives must equal what was sent.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import struct
import subprocess
from pathlib import Path
from typing import IO

import pytest
from foreign import NO_FAREWELL, PEER, SECTOR, relay
from running import wait_listening

from sector.ports import free_ports

LIMIT_S = 60  # something hangs; libudt alone may look for its rendezvous for 30 s

FAULTS = {
    "clean": [],
    "loss1": ["--loss", "10000"],
    "loss5reorder": ["--loss", "50000", "--reorder", "20000", "--reorder-delay", "3000"],
    "loss01": ["--loss", "1000"],
    "doubled": ["--dup", "50000", "--dup-delay", "2000"],
    "far": ["--delay", "50000", "--jitter", "2000"],
    "narrow": ["--rate", "20000000", "--delay", "5000", "--queue", "60000"],
    "start": ["--loss-mask", "0x22"],  # each way the second (a server's answer), the sixth
}
BOTH_WAYS = ("clean", "loss1", "loss5reorder")
STREAM_BYTES = {"clean": 64_000_000, "loss1": 8_000_000, "loss5reorder": 1_000_000}
STREAM_OTHERS = 4_000_000
MESSAGE_SIZES = {
    "clean": [8_000_000, 1, 1456, 1457, 2912, 50_000, 1_000_000],
    "loss1": [1_000_000, 1, 1456, 100_000, 50_000],
    "loss5reorder": [200_000, 7, 1456, 50_000],
}
UDTCAT_MESSAGE = {"clean": 8_000_000, "loss1": 1_000_000, "loss5reorder": 200_000}
MESSAGE_OTHERS = 300_000
ROLES = ("client", "server", "rendezvous")
CELLS = [
    (role, we_send, mode, network)
    for place, network in enumerate(FAULTS)
    for mode in ("stream", "message")
    for turn, role in enumerate(ROLES)
    for we_send in (True, False)
    if network in BOTH_WAYS or we_send == bool((place + turn + (mode == "stream")) % 2)
]


def message_bytes(network: str) -> int:
    """How long the messages are that udtcat sends."""
    return UDTCAT_MESSAGE.get(network, MESSAGE_OTHERS)


def sizes_and_data(mode: str, we_send: bool, network: str, seed: int) -> tuple[list[int], bytes]:
    """The messages (or the one stream) to send. udtcat cuts its input into equal messages and a rest."""
    if mode == "stream":
        sizes = [STREAM_BYTES.get(network, STREAM_OTHERS)]
    elif we_send:
        sizes = [message_bytes(network)] * 2 + [50_001]
    else:
        sizes = MESSAGE_SIZES.get(network, [MESSAGE_OTHERS, 1, 1456, 1457, 50_000])
    return sizes, random.Random(seed).randbytes(sum(sizes))


def framed(sizes: list[int], data: bytes) -> bytes:
    """libudt_peer's file of messages."""
    out, at = [], 0
    for size in sizes:
        out.append(struct.pack(">I", size) + data[at : at + size])
        at += size
    return b"".join(out)


def unframe(raw: bytes) -> list[bytes]:
    """The messages in libudt_peer's file."""
    out, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from(">I", raw, at)
        out.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return out


def ours(
    arguments: list[str], mode: str, network: str, **streams: IO[bytes] | int
) -> subprocess.Popen[bytes]:
    """Our side: the udtcat command as a user runs it."""
    extra = [] if mode == "stream" else ["--message", "--message-size", str(message_bytes(network))]
    return subprocess.Popen(
        [*SECTOR, "udtcat", *extra, *arguments],
        stdin=streams.get("stdin", subprocess.DEVNULL),
        stdout=streams.get("stdout", subprocess.DEVNULL),
        stderr=subprocess.PIPE,
    )


def theirs(arguments: list[str], mode: str, direction: list[str]) -> subprocess.Popen[bytes]:
    """libudt's side."""
    extra = [] if mode == "stream" else ["--message"]
    return subprocess.Popen([str(PEER), *arguments, *direction, *extra], stdout=subprocess.PIPE)


def addresses(role: str, network: str, stack: contextlib.ExitStack) -> tuple[list[str], list[str]]:
    """Command lines (ours, theirs) that make both meet in `role` of ours through the network."""
    faults = FAULTS[network]
    if role == "rendezvous":
        a, b, to_a, to_b = free_ports(4)
        if faults:
            stack.enter_context(relay(["--pair", f"{a}:{b}", "--ports", f"{to_a}:{to_b}", *faults]))
        else:
            to_a, to_b = b, a
        return (
            ["--rendezvous", "-l", str(a), "127.0.0.1", str(to_a)],
            ["rendezvous", str(b), "127.0.0.1", str(to_b)],
        )
    server, front = free_ports(2)
    if faults:
        stack.enter_context(relay(["--listen", str(front), "--to", f"127.0.0.1:{server}", *faults]))
    else:
        front = server
    listen, connect = str(server), ["127.0.0.1", str(front)]
    if role == "client":
        return connect, ["listen", listen]
    return ["-l", listen], ["connect", *connect]


def finish(process: subprocess.Popen[bytes], name: str, no_farewell_after: int | None = None) -> None:
    """Wait for one side and say what went wrong. With a number of bytes, that end without a farewell is
    one of the two right ones."""
    try:
        _, talk = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise AssertionError(f"{name} did not end in {LIMIT_S} s") from None
    if process.returncode == 1 and no_farewell_after is not None:
        line = NO_FAREWELL.fullmatch(talk)
        if line is not None and int(line[1]) == no_farewell_after:
            return
    assert process.returncode == 0, f"{name} ended with {process.returncode}: {(talk or b'').decode()}"


def end_of(process: subprocess.Popen[bytes]) -> str:
    """How one side ended and what it has said since `finish`, or that it had to be killed now."""
    was = process.poll()
    process.kill()
    pipe = process.stderr or process.stdout
    talk = b"" if pipe is None or pipe.closed else b"".join(part or b"" for part in process.communicate())
    state = "was still running" if was is None else f"status {was}"
    return f"{state} {talk.decode(errors='replace').strip()}"


def transfer(
    role: str, we_send: bool, mode: str, source: Path, target: Path, network: str, size: int
) -> None:
    """Run one cell of the matrix; `size` bytes of content are to arrive."""
    with contextlib.ExitStack() as stack:
        our_where, their_where = addresses(role, network, stack)
        direction = ["--recv", str(target)] if we_send else ["--send", str(source)]

        def start_ours() -> subprocess.Popen[bytes]:
            if we_send:
                return ours(our_where, mode, network, stdin=stack.enter_context(source.open("rb")))
            return ours(our_where, mode, network, stdout=stack.enter_context(target.open("wb")))

        def start_theirs() -> subprocess.Popen[bytes]:
            return theirs(their_where, mode, direction)

        if role == "client":
            second = start_theirs()
            wait_listening("libudt", second, int(their_where[1]))
            first = start_ours()
        else:
            first = start_ours()
            if role == "server":
                wait_listening("our", first, int(our_where[1]))
            second = start_theirs()
        try:
            finish(second, "libudt")
            lossy = not we_send and any("loss" in option for option in FAULTS[network])
            finish(first, "udtcat", size if lossy else None)
        except AssertionError as error:
            arrived = target.stat().st_size if target.exists() else 0
            error.add_note(f"{arrived} bytes at the receiver")
            for process, name in ((first, "udtcat"), (second, "libudt")):
                error.add_note(f"{name}: {end_of(process)}")
            raise
        finally:
            for process in (first, second):
                end_of(process)


@pytest.mark.parametrize(
    ("role", "we_send", "mode", "network"),
    CELLS,
    ids=[f"{r}-{'to' if to else 'from'}_libudt-{mode}-{network}" for r, to, mode, network in CELLS],
)
def test_bytes_arrive_unchanged(
    role: str, we_send: bool, mode: str, network: str, tmp_path: Path, seed: int
) -> None:
    """Every cell: what arrives equals what was sent, in order, with message boundaries kept."""
    sizes, data = sizes_and_data(mode, we_send, network, seed)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(data if mode == "stream" or we_send else framed(sizes, data))
    transfer(role, we_send, mode, source, target, network, len(data))
    arrived = target.read_bytes()
    if mode == "message" and we_send:
        messages = unframe(arrived)
        assert [len(m) for m in messages] == sizes
        arrived = b"".join(messages)
    assert len(arrived) == len(data)
    assert hashlib.sha256(arrived).digest() == hashlib.sha256(data).digest()
