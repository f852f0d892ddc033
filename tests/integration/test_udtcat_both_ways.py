"""`sector udtcat` where both ends send: who closes first ends both directions, and nobody is told that all
is well where something was lost."""

from __future__ import annotations

import subprocess
import sys

import pytest
from running import running, wait_listening

from sector.ports import free_ports

COMMAND = [sys.executable, "-m", "sector.cli.main", "udtcat"]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.mark.parametrize(("ours", "theirs"), [(2_000_000, 2_700_000), (2_700_000, 2_000_000)])
def test_a_part_is_no_success_of_both(ours: int, theirs: int) -> None:
    """In time, too: an end that closes while the other one is closing does not wait for it."""
    (port,) = free_ports(1, "0.0.0.0")
    head = ["head", "-c", str(theirs), "/dev/zero"]
    with running(head, stdout=subprocess.PIPE) as source:
        with running([*COMMAND, "-l", str(port)], stdin=source.stdout, **PIPES) as listener:
            assert source.stdout is not None
            source.stdout.close()
            wait_listening("listening", listener, port)
            command = [*COMMAND, "127.0.0.1", str(port)]
            client = subprocess.run(command, input=bytes(ours), timeout=30, **PIPES)
            out, err = listener.communicate(timeout=30)
    ended = client.returncode, listener.returncode
    if (len(client.stdout), len(out)) != (theirs, ours):
        assert 1 in ended and set(ended) <= {0, 1}
        told = client.stderr + err
        assert any(
            words in told for words in (b"end of input", b"not all that was sent", b"before all was sent")
        ), told
    else:
        assert ended == (0, 0)
