"""Count words of text files: the smallest useful job.

python examples/wordcount.py /text
sector sphere run examples/wordcount.py:count /text
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

import sector


def count(text: memoryview, ctx: Any) -> bytes:
    """Granularity file: "count word" lines of one file, most frequent words first."""
    words = Counter(bytes(text).decode("utf-8", "replace").casefold().split())
    lines = (f"{number} {word}\n" for word, number in words.most_common())
    return "".join(lines).encode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="*", default=["/"], help="files, directories or globs of the cloud")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="how many words to print")
    options = parser.parse_args()
    with sector.connect() as cloud:
        total: Counter[str] = Counter()
        job = sector.SphereProcess(cloud).run(sector.SphereStream(cloud, options.paths), count)
        for part in job.results():
            for line in part.data.decode().splitlines():
                number, word = line.split(" ", 1)
                total[word] += int(number)
        for word, number in total.most_common(options.top):
            print(f"{number:8} {word}")


if __name__ == "__main__":
    try:
        main()
    except sector.SectorError as error:
        sys.exit(f"wordcount: {error}")
