"""Counters of one process, in a form that adds up over processes, and their text for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
_HELP: Final = {
    "connections": ("gauge", "Connections that are open."),
    "requests_in_flight": ("gauge", "Requests that are not answered yet."),
    "jobs_waiting": ("gauge", "Requests and buffers that run or wait for a thread."),
    "received_bytes_total": ("counter", "Bytes of bodies received."),
    "sent_bytes_total": ("counter", "Bytes of bodies sent."),
    "refused_total": ("counter", "Requests and connections refused because too much was under way."),
    "limited_requests_total": ("counter", "Requests refused by a limit of a user or an address."),
    "limited_connections_total": ("counter", "Connections refused by a limit of a user or an address."),
    "transfers": ("gauge", "Downloads and uploads that share the bandwidth."),
    "transfers_held": ("gauge", "Those of them that wait for others to have their share."),
    "transfers_held_total": ("counter", "How often one had to wait for others."),
    "transfers_held_seconds_total": ("counter", "Seconds for which they waited."),
    "timeouts_total": ("counter", "Connections ended because a head, a body or a reader was too slow."),
    "broken_total": ("counter", "Requests whose client went before the reply was sent."),
    "access_log_dropped_total": ("counter", "Lines of the access log that were dropped."),
}


OTHERS: Final = "/others"  # no name of a user
_OF_USERS: Final = (
    ("requests", "Requests of a user that were answered."),
    ("received_bytes", "Bytes of bodies received from a user."),
    ("sent_bytes", "Bytes of bodies sent to a user."),
)


class Sample(msgspec.Struct):
    """What one process has counted: plain figures, requests by (operation, status), durations by bucket (the
    last one has no bound) and their sum in seconds, and of each user requests, bytes received and sent."""

    plain: dict[str, float] = {}
    requests: dict[str, dict[int, int]] = {}
    durations: list[int] = []
    seconds: float = 0.0
    users: dict[str, tuple[int, int, int]] = {}


class Metrics:
    """Counts; all in the reactor's thread. The first `most_users` users have counters of their own, all that
    come later share one."""

    def __init__(self, most_users: int = 100) -> None:
        self._most_users = most_users
        self._users: dict[str, list[int]] = {}
        self.plain: Counter[str] = Counter()
        self._requests: dict[str, dict[int, int]] = {}
        self._durations = [0] * (len(BOUNDS_S) + 1)
        self._seconds = 0.0

    def request(self, operation: str, status: int, seconds: float) -> None:
        """One request is over."""
        by_status = self._requests.setdefault(operation, {})
        by_status[status] = by_status.get(status, 0) + 1
        self._durations[bisect_left(BOUNDS_S, seconds)] += 1
        self._seconds += seconds

    def of_user(self, name: str, received: int, sent: int) -> None:
        """One of his requests is over."""
        if not self._most_users or not name:
            return
        found = self._users.get(name)
        if found is None:
            if len(self._users) >= self._most_users and name != OTHERS:
                self.of_user(OTHERS, received, sent)
                return
            found = self._users[name] = [0, 0, 0]
        found[0] += 1
        found[1] += received
        found[2] += sent

    def sample(self) -> Sample:
        """All of it now."""
        requests = {name: dict(statuses) for name, statuses in self._requests.items()}
        users = {name: (one[0], one[1], one[2]) for name, one in self._users.items()}
        return Sample(dict(self.plain), requests, list(self._durations), self._seconds, users)


def total(samples: Iterable[Sample]) -> Sample:
    """The sum of several processes' samples."""
    result = Sample(durations=[0] * (len(BOUNDS_S) + 1))
    for sample in samples:
        for name, value in sample.plain.items():
            result.plain[name] = result.plain.get(name, 0) + value
        for operation, statuses in sample.requests.items():
            mine = result.requests.setdefault(operation, {})
            for status, count in statuses.items():
                mine[status] = mine.get(status, 0) + count
        result.durations = [a + b for a, b in zip(result.durations, sample.durations, strict=True)]
        result.seconds += sample.seconds
        for name, (requests, received, sent) in sample.users.items():
            old = result.users.get(name, (0, 0, 0))
            result.users[name] = (old[0] + requests, old[1] + received, old[2] + sent)
    return result


def lasting(sample: Sample) -> Sample:
    """Of what a process has counted what stays true when it has ended: not what is open or waits."""
    plain = {name: value for name, value in sample.plain.items() if _HELP.get(name, ("",))[0] != "gauge"}
    return msgspec.structs.replace(sample, plain=plain)


def fewer_users(sample: Sample, most: int, names: dict[str, None] | None = None) -> Sample:
    """The same with the first `most` users; what the others have counted is together, under OTHERS. `names`
    keeps from sample to sample who the first were: a counter that moves would fall."""
    names = {} if names is None else names
    for name in sample.users:
        if len(names) < most and name != OTHERS:
            names[name] = None
    users = {name: counted for name, counted in sample.users.items() if name in names}
    rest = [counted for name, counted in sample.users.items() if name not in names]
    if rest:
        users[OTHERS] = (
            sum(one[0] for one in rest),
            sum(one[1] for one in rest),
            sum(one[2] for one in rest),
        )
    return msgspec.structs.replace(sample, users=users)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")


def _of_users(sample: Sample) -> list[str]:
    lines: list[str] = []
    for number, (name, told) in enumerate(_OF_USERS if sample.users else ()):
        full = f"cumulus_user_{name}_total"
        lines += [f"# HELP {full} {told}", f"# TYPE {full} counter"]
        lines += [
            f'{full}{{user="{_label(user)}"}} {sample.users[user][number]}' for user in sorted(sample.users)
        ]
    return lines


def prometheus(sample: Sample) -> str:
    """Text of the exposition format, version 0.0.4; all names begin with "cumulus_"."""
    lines: list[str] = []
    for name, (kind, text) in _HELP.items():
        lines += [f"# HELP cumulus_{name} {text}", f"# TYPE cumulus_{name} {kind}"]
        lines.append(f"cumulus_{name} {sample.plain.get(name, 0):.12g}")
    lines += ["# HELP cumulus_requests_total Requests answered.", "# TYPE cumulus_requests_total counter"]
    for operation in sorted(sample.requests):
        for status, count in sorted(sample.requests[operation].items()):
            lines.append(
                f'cumulus_requests_total{{operation="{_label(operation)}",status="{status}"}} {count}'
            )
    lines += _of_users(sample)
    lines += [
        "# HELP cumulus_request_seconds From a request's first byte to its reply's last.",
        "# TYPE cumulus_request_seconds histogram",
    ]
    running = 0
    for bound, count in zip((*BOUNDS_S, None), sample.durations, strict=True):
        running += count
        label = "+Inf" if bound is None else f"{bound:g}"
        lines.append(f'cumulus_request_seconds_bucket{{le="{label}"}} {running}')
    lines += [f"cumulus_request_seconds_sum {sample.seconds:.6f}", f"cumulus_request_seconds_count {running}"]
    return "\n".join(lines) + "\n"
