"""What a time series of received bytes says: steady rate, first seconds, time to speed (pure)."""

from __future__ import annotations

from collections.abc import Sequence

FIRST_S = 20.0


def mean_bps(samples: Sequence[float], sample_s: float, start_s: float, end_s: float) -> float:
    """Mean bit/s between two times; samples are bytes per `sample_s`. Times past the end count nothing."""
    first, last = round(start_s / sample_s), min(round(end_s / sample_s), len(samples))
    if last <= first:
        return 0.0
    return sum(samples[first:last]) * 8 / ((last - first) * sample_s)


def steady_bps(samples: Sequence[float], sample_s: float, whole_s: float) -> float:
    """Mean of the second half of a run of `whole_s`."""
    return _padded(samples, sample_s, whole_s / 2, whole_s)


def first_bps(samples: Sequence[float], sample_s: float, whole_s: float) -> float:
    """Mean of the first 20 s, or of all of a shorter run."""
    return _padded(samples, sample_s, 0, min(FIRST_S, whole_s))


def _padded(samples: Sequence[float], sample_s: float, start_s: float, end_s: float) -> float:
    """As mean_bps, but silence at the end counts as silence."""
    count = round(end_s / sample_s)
    return mean_bps([*samples, *[0.0] * (count - len(samples))], sample_s, start_s, end_s)


def time_to_bps(samples: Sequence[float], sample_s: float, bps: float) -> float | None:
    """Seconds until a sample reaches `bps` and the mean of half a second from there does; None if never."""
    need, kept = bps / 8 * sample_s, max(1, round(0.5 / sample_s))
    calm = [min(sample, need * 1.1) for sample in samples]  # what had piled up and came at once is no rate
    for i in range(len(samples) - kept + 1):
        if calm[i] >= need and sum(calm[i : i + kept]) >= need * kept:
            return round(i * sample_s, 3)
    return None


def jain(rates: Sequence[float]) -> float:
    """Jain's index of fairness: 1 = all equal, 1/n = one has all."""
    squares = sum(rate * rate for rate in rates)
    return sum(rates) ** 2 / (len(rates) * squares) if squares else 0.0
