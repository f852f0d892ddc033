"""Rates and traffic counters: texts, sums, what limits, the size of a heartbeat."""

from __future__ import annotations

import pytest

from sector._udt.rates import Rates, rates_of
from sector._udt.traffic import NAMES, Traffic, packed, shown, unpacked
from sector.config import parse_config, parse_rate
from sector.errors import BadConfig
from sector.wire.base import encode
from sector.wire.slave import Heartbeat

CLIENT = "[data]\n"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("200 MB/s", 200_000_000),
        ("1.5 Gb/s", 187_500_000),
        ("400Mbit/s", 50_000_000),
        ("50M", 50_000_000),
        ("1000000", 1_000_000),
        ("100 Mbps", 12_500_000),
        ("8kB/s", 8000),
    ],
)
def test_rates_in_words(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "MB/s", "-1MB/s", "1 MB/h", "1b/s", "999999 TB/s", "1.2.3M"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError):
        parse_rate(text)


def test_caps_of_settings_reach_the_port() -> None:
    """The section [data] as the data port takes it."""
    text = CLIENT + 'max_bandwidth = "10 MB/s"\ncongestion_control = "cubic"\n'
    text += '[[data.link_cap]]\nto = "192.0.2.0/24"\nbandwidth = "1 Gb/s"\n'
    text += '[[data.link_cap]]\nto = "2001:db8::/32"\nbandwidth = "1 MB/s"\n'
    rates = rates_of(parse_config(text, "client", "f").data)
    links = (("192.0.2.0", 24, 125_000_000), ("2001:db8::", 32, 1_000_000))
    assert rates == Rates("cubic", 10_000_000, links)
    assert [rates.of(0), rates.of(5), rates.of(10**9)] == [10_000_000, 5, 10_000_000]
    assert Rates().of(7) == 7


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ('max_bandwidth = "fast"', "max_bandwidth"),
        ('congestion_control = "fixed"', "needs a rate"),
        ('congestion_control = "reno"', "congestion_control"),
        ("link_cap = 3", "[[data.link_cap]]"),
        ('[[data.link_cap]]\nto = "192.0.2.1/24"\nbandwidth = "1 MB/s"', "host bits"),
        ('[[data.link_cap]]\nto = "192.0.2.0/24"\nbandwidth = "1 MB/h"', "not a rate"),
        ('[[data.link_cap]]\nto = "192.0.2.0/24"\nbandwith = "1 MB/s"', "did you mean bandwidth?"),
    ],
)
def test_wrong_rates_are_one_line(text: str, part: str) -> None:
    with pytest.raises(BadConfig) as caught:
        parse_config(CLIENT + text, "client", "f")
    assert part in f"{caught.value.message} ({caught.value.hint})" and "\n" not in caught.value.message


def test_sums_of_ended_and_running_transfers() -> None:
    """Nothing is lost or counted twice when a transfer ends; the limit is that of the time in between."""
    traffic = Traffic()
    one = {"bytes_sent": 100, "pkts_sent": 2, "send_Bps": 50, "lim_cwnd_us": 10, "rtt_us": 7, "min_rtt_us": 6}
    first = traffic.counters({1: one})
    assert (first["bytes_out"], first["transfers_now"], first["out_Bps"]) == (100, 1, 50)
    assert shown(first)["limit"] == "network"
    only_receives = {"bytes_recv": 5, "rtt_us": 100_000, "min_rtt_us": 0}  # what stands there at the start
    assert first["rtt_us"] == Traffic().counters({1: one, 2: only_receives})["rtt_us"] == 7
    later = {**one, "bytes_sent": 300, "lim_cap_us": 5}
    assert shown(traffic.counters({1: later}))["limit"] == "cap"
    traffic.ended({**later, "bytes_sent": 400}, good=True, tls=False)
    last = traffic.counters({})
    assert (last["bytes_out"], last["transfers_done"], last["transfers_now"]) == (400, 1, 0)
    assert shown(last)["limit"] == ""
    traffic.ended({}, good=False, tls=True)
    assert traffic.counters({})["transfers_failed"] == traffic.counters({})["transfers_tls"] == 1


def test_a_heartbeat_with_large_numbers_is_a_control_message() -> None:
    """At most 256 bytes with the head of a call (24), whatever a slave has moved."""
    big = 1 << 40
    state = dict.fromkeys(("associations", "connections", "half_open", "tasks"), 1 << 16)
    counters = {name: big if name.startswith("bytes") else 1 << 31 for name in NAMES}
    beat = Heartbeat("s" * 32, big, big, 1 << 31, 64, big, 1.5, 64, 64, state, packed(counters))
    assert len(encode(beat)) + 24 <= 256
    assert unpacked(packed(counters)) == counters
    assert unpacked([1, 2]) == {"bytes_out": 1, "bytes_in": 2}
    assert set(unpacked(range(40))) == set(NAMES)
