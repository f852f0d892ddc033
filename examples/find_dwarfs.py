"""Find brown-dwarf candidates in a star catalogue: a batch function over records with a NumPy dtype.

Cool stars are much brighter in z than in i. The catalogue has 24 bytes a star; one is made up if asked for:

    python examples/find_dwarfs.py --make 1000000 /sdss/stars.cat
    python examples/find_dwarfs.py /sdss/stars.cat
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np

import sector

STAR = np.dtype([("ra", "<f8"), ("dec", "<f8"), ("i", "<f4"), ("z", "<f4")])


def find(stars: Any, ctx: Any) -> Any:
    """Granularity batch, stars: STAR[n] -> those with i - z over ctx.params["redder"], STAR[m]."""
    redder = (stars["i"] - stars["z"]) > ctx.params["redder"]
    bright = stars["z"] < ctx.params["limit"]
    return stars[redder & bright]


def make(count: int, seed: int = 1) -> Any:
    """A catalogue of `count` stars, a few in ten thousand of them very red: STAR[count]."""
    rng = np.random.default_rng(seed)
    stars = np.zeros(count, dtype=STAR)
    stars["ra"], stars["dec"] = rng.uniform(0, 360, count), rng.uniform(-5, 60, count)
    stars["z"] = rng.normal(19, 1, count)
    stars["i"] = stars["z"] + rng.normal(0.4, 0.4, count)
    return stars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("path", help="catalogue in the cloud")
    parser.add_argument("--make", type=int, metavar="N", help="store a made-up catalogue of N stars first")
    parser.add_argument("--redder", type=float, default=1.7, help="smallest i - z in magnitudes")
    parser.add_argument("--limit", type=float, default=19.5, help="faintest z magnitude")
    options = parser.parse_args()
    with sector.connect() as cloud:
        if options.make:
            cloud.write(options.path, make(options.make).tobytes())
        stream = sector.SphereStream(
            cloud, options.path, record_size=STAR.itemsize, granularity="batch", dtype=STAR
        )
        params = {"redder": options.redder, "limit": options.limit}
        job = sector.SphereProcess(cloud).run(stream, find, params=params, in_order=True)
        found = [part.data for part in job.results()]
        stars = np.concatenate(found) if found else np.zeros(0, dtype=STAR)
        print(f"{len(stars)} candidates")
        for star in stars[:10]:
            place = f"ra {star['ra']:9.4f}  dec {star['dec']:8.4f}"
            print(f"{place}  z {star['z']:5.2f}  i-z {star['i'] - star['z']:4.2f}")


if __name__ == "__main__":
    try:
        main()
    except sector.SectorError as error:
        sys.exit(f"find_dwarfs: {error}")
