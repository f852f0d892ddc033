"""What the HTTP floor is told: sizes, time-outs and limits, checked by whoever reads them from a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from cumulus.fair.limits import Limits
from cumulus.fair.weights import Sharing
from cumulus.proxies import Networks

KIB: Final = 1024
MIB: Final = 1024 * KIB

SERVER: Final = b"Cumulus"
SMALL_BODY: Final = 64 * KIB  # a body up to this is read whole, then handled in one hop to a thread
SMALL_DOWNLOAD: Final = 128 * KIB  # and one that is sent together with its head
FIRST_BUFFER: Final = 16 * KIB  # of a large body: many slow clients hold one of these each
BUFFER: Final = MIB  # of a large body that comes fast, and of a download that is read in threads
BUFFERS: Final = 16 * MIB  # of all those of a process together: the more there are, the smaller they get
DRAINED: Final = 256 * KIB  # what nobody wants is read to its end up to this, else the connection is closed
STRETCH: Final = 16 * MIB  # of one body that a thread may receive and write before the others have their turn
TURN: Final = 2 * MIB  # of one connection by sendfile(2) before the others have their turn
HEAD_BYTES: Final = 64 * KIB  # request line and headers together
EAGER: Final = 16 * KIB  # of what comes behind a request under way before the connection is paused
AT_ONCE: Final = 8  # requests of one connection that are begun before the others have their turn
LINGER_S: Final = 5.0  # for the client to read a refusal before the connection ends under its upload
BODILESS: Final = frozenset({204, 304})  # statuses of replies without a body


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """`threads` run requests, `queue` more may wait for one; beyond that the answer is 503 SlowDown.
    `header_timeout_s` bounds a head from its first byte, and is the time over which a body must arrive with
    at least `min_body_rate` bytes/s; `idle_timeout_s` ends a kept connection without a request,
    `write_timeout_s` one whose client takes nothing; `silence_s` is how long a client waits for the answer
    to a copy or a completion without a sign (`cumulus.http.alive`). `total_rate` (bytes/s both ways together,
    0 = no limit) is for all processes of the server, as are the limits of each user and each address;
    `sharing` says among whom bandwidth is shared. `metrics_users` have counters of their own.
    Of connections from `proxies` headers say who the client is."""

    threads: int = 32
    queue: int = 1024
    max_connections: int = 10_000
    header_timeout_s: float = 20.0
    idle_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    silence_s: float = 15.0
    min_body_rate: int = 1000
    total_rate: int = 0
    sharing: Sharing = field(default_factory=Sharing)
    user_limits: Limits = Limits()
    address_limits: Limits = Limits()
    metrics_users: int = 100
    proxies: Networks = ()
