"""What limits a transfer, in words and shares, and traces as qlog-like JSON."""

from __future__ import annotations

import json

from sector._udt.limits import receiving, sending, sentence
from sector._udt.trace import Record, Trace, qlog
from sector.cli.transfer_live import limit, line
from sector.client.progress import Progress

SENT = {"pkts_sent": 1000, "loss_ppm": 3000, "rtt_us": 100_000, "min_rtt_us": 99_000, "in_flight_bytes": 1}


def test_shares_of_a_put() -> None:
    """The sender's disk is part of its program's time; of a transfer the receiver is its disk."""
    stats = {
        "lim_app_us": 30,
        "lim_disk_us": 20,
        "lim_cwnd_us": 40,
        "lim_pace_us": 10,
        "lim_flow_us": 20,
        "lim_none_us": 0,
    }
    shares = sending(stats, transfer=True)
    assert list(shares) == ["network", "sender_disk", "receiver_disk", "sender"]
    assert shares["network"] == 0.5 and shares["sender"] == 0.1
    assert abs(sum(shares.values()) - 1) < 1e-9
    assert sending(stats) == {"network": 0.5, "sender": 0.3, "receiver": 0.2}
    assert sending({}) == {}


def test_shares_of_a_get() -> None:
    """A receiver knows its own disk; the rest was elsewhere."""
    shares = receiving({"us": 100, "lim_disk_us": 25, "lim_app_us": 999})
    assert shares == {"network_or_sender": 0.75, "receiver_disk": 0.25}


def test_sentence() -> None:
    """The reason with what it rests on."""
    said = sentence({"network": 0.71, "receiver_disk": 0.29}, SENT)
    assert said == "limited 71 % by the network (loss 0.3 %, RTT 100 ms), 29 % by the receiver's disk"
    assert sentence({}, {}) == "limited by nothing that was measured"


def test_live_line() -> None:
    """How far, how fast, and what was waited for since the last line; transfers that ended do not count."""
    now = dict.fromkeys(("pkts_sent", "pkts_retrans", "pkts_lost", "in_flight_bytes", "queue_bytes"), 0)
    now |= {"rtt_us": 20_000, "min_rtt_us": 19_000, "send_Bps": 5_000_000, "recv_Bps": 0, "pkts_sent": 100}
    later = now | {"lim_cwnd_us": 10, "lim_pace_us": 10, "lim_app_us": 15}
    progress = Progress(files_total=1, bytes_total=200, bytes_done=50, name="/a/b.dat")
    assert limit({1: now}, {1: later}) == "network"
    assert limit({2: now}, {1: later}) == ""
    text = line(progress, {1: now}, {1: later}, sending=True)
    assert text == "b.dat 25 % | 5.0 MB/s | loss 0 %, RTT 20 ms | limited by network"
    assert "limited" not in line(progress, {1: now}, {1: later}, sending=False)


def test_every_record_has_a_name() -> None:
    """One event a record, times from the first one on, connections apart, and plain JSON."""
    records = [Record(5_000 + kind * 1000, 7, kind, 1, 3, 2) for kind in range(1, 13)]
    records.append(Record(90_000, 8, 4, 2, (1 << 64) - 1, 5))
    document = json.loads(json.dumps(qlog(records, 20, "t", "client")))
    first, second = (trace["events"] for trace in document["traces"])
    assert [event["time"] for event in first] == [float(ms) for ms in range(12)]
    names = [event["name"] for event in first]
    assert names[0] == "transport:packet_sent" and names[3] == "recovery:packet_lost"
    assert names.count("recovery:metrics_updated") == 2
    assert second[0]["name"] == "sector:loss_withdrawn"
    assert document["sector"] == {"records": 13, "pushed_out": 7}
    assert document["qlog_version"] == "0.3"


def test_empty_trace() -> None:
    """Nothing happened: a document without traces."""
    trace = Trace(20)
    assert trace.records() == [] and trace.count == 0
    assert trace.qlog()["traces"] == []
