"""The live line of `sector udtcat --stats`."""

from __future__ import annotations

from sector.cli.udtcat_live import limit, line

ZERO = dict.fromkeys(
    (
        "bytes_sent",
        "bytes_recv",
        "pkts_sent",
        "pkts_retrans",
        "rtt_us",
        "min_rtt_us",
        "cwnd_pkts",
        "flow_wnd_pkts",
        "in_flight_pkts",
        "lim_app_us",
        "lim_cwnd_us",
        "lim_flow_us",
    ),
    0,
)


def after(**changes: int) -> dict[str, int]:
    """Statistics in which something moved."""
    return ZERO | changes


def test_what_limits_is_what_was_waited_for_longest() -> None:
    """Of the three waits the one that grew most; our own output comes first."""
    assert limit(ZERO, after(bytes_sent=9, lim_app_us=5, lim_cwnd_us=9), output_waits=False) == "network"
    assert limit(ZERO, after(bytes_sent=9, lim_app_us=5), output_waits=False) == "sender"
    assert limit(ZERO, after(bytes_sent=9, lim_flow_us=7, lim_app_us=5), output_waits=False) == "receiver"
    assert limit(ZERO, after(bytes_sent=9), output_waits=False) == "sender"
    assert limit(ZERO, after(bytes_recv=9), output_waits=True) == "output"
    assert limit(ZERO, after(bytes_recv=9), output_waits=False) == "peer"
    assert limit(ZERO, ZERO, output_waits=False) == "idle"


def test_the_line_has_rate_rtt_loss_window_and_limit() -> None:
    """Units in words; the directions that moved."""
    now = after(
        bytes_sent=12_500_000,
        pkts_sent=99,
        pkts_retrans=1,
        rtt_us=20_500,
        min_rtt_us=20_000,
        cwnd_pkts=300,
        flow_wnd_pkts=200,
        in_flight_pkts=150,
        lim_cwnd_us=10,
    )
    assert line(ZERO, now, 1.0, output_waits=False) == (
        "out 100.0 Mb/s | RTT 20.5 ms | loss 1.00 % | window 200 packets, 150 under way | limited by network"
    )
    # what stands in rtt_us before the first sample is no round trip time
    only_receives = after(bytes_recv=125_000, rtt_us=100_000)
    assert line(ZERO, only_receives, 1.0, output_waits=False) == "in 1.0 Mb/s | limited by peer"
