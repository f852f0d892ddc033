"""Inverted index of web pages in two stages, as in section 3.6 of the Sphere paper.

Stage 1 reads one HTML file per segment, finds its terms and sends each to the bucket that its hash names.
Stage 2 merges one bucket per segment into lines "term<TAB>path:count path:count ...", sorted by their bytes.
White space and % in a path are written as in a URL (%20, %25).

    python examples/inverted_index.py --input PAGES --cloud-dir /pages --output /index --fetch index.txt
"""

from __future__ import annotations

import argparse
import heapq
import html
import os
import re
import shutil
import sys
import tempfile
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import unquote_to_bytes

import sector

TAG = re.compile(r"<[^>]*>")
TERM = re.compile(r"[^\W_]+")
ESCAPED = re.compile(rb"[%\s]")


def terms_of(page: bytes) -> Counter[str]:
    """How often each term stands in a page: tags are blanks, entities are what they stand for, a term is a
    run of letters and digits, compared without case."""
    text = html.unescape(TAG.sub(" ", page.decode("utf-8", "replace")))
    return Counter(term.casefold() for term in TERM.findall(text))


def escape(path: str) -> bytes:
    """A path without white space."""
    return ESCAPED.sub(lambda found: b"%%%02X" % ord(found[0]), path.encode())


def extract(page: memoryview, ctx: Any) -> None:
    """Stage 1, granularity file: each term of the page goes to its bucket as "term<TAB>path<TAB>count"."""
    path = escape(ctx.path)
    for term, count in terms_of(bytes(page)).items():
        key = term.encode()
        ctx.emit(zlib.crc32(key) % ctx.buckets, b"%s\t%s\t%d\n" % (key, path, count))


def merge(bucket: memoryview, ctx: Any) -> Iterator[bytes]:
    """Stage 2, granularity file: all lines of a term become one."""
    found: defaultdict[bytes, list[tuple[bytes, bytes]]] = defaultdict(list)
    for line in bytes(bucket).splitlines():
        term, path, count = line.split(b"\t")
        found[term].append((path, count))
    for term in sorted(found):
        yield term + b"\t" + b" ".join(b"%s:%s" % pair for pair in sorted(found[term])) + b"\n"


def build(cloud: sector.Cloud, pages: str, output: str, buckets: int) -> list[str]:
    """Index all pages below the cloud directory `pages`; the paths of the index files `output`/part.N, one of
    each bucket that has terms."""
    sphere = sector.SphereProcess(cloud)
    stream = sector.SphereStream(cloud, pages, granularity="file")
    first = sphere.run(stream, extract, output=f"{output}/terms", buckets=buckets)
    second = sphere.run(first.output.cut(granularity="file"), merge, output=f"{output}/part")
    second.wait()
    for file in first.output.files:
        cloud.rm(file.path)
    return [file.path for file in second.output.files]


def look_up(cloud: sector.Cloud, parts: list[str], buckets: int, word: str) -> list[tuple[str, int]]:
    """Pages with a word and how often it stands there, most often first: one of the buckets is read."""
    term = word.casefold().encode()
    number = str(zlib.crc32(term) % buckets)
    for part in parts:
        if part.rpartition(".")[2] != number:
            continue
        for line in cloud.read(part).splitlines():
            key, _, pages = line.partition(b"\t")
            if key == term:
                pairs = [page.rpartition(b":") for page in pages.split(b" ")]
                found = [(unquote_to_bytes(path).decode(), int(count)) for path, _, count in pairs]
                return sorted(found, key=lambda pair: (-pair[1], pair[0]))
    return []


def fetch(cloud: sector.Cloud, parts: list[str], target: str) -> None:
    """The whole index as one sorted local file."""
    folder = tempfile.mkdtemp(prefix="index-")
    try:
        cloud.get(parts, folder)
        with ExitStack() as stack, open(target, "wb") as out:
            names = [os.path.join(folder, part.rsplit("/", 1)[1]) for part in parts]
            out.writelines(heapq.merge(*(stack.enter_context(open(name, "rb")) for name in names)))
    finally:
        shutil.rmtree(folder)


def store(cloud: sector.Cloud, folder: str, cloud_dir: str) -> Any:
    """Store all that is in a local folder below a cloud directory, by the same names."""
    entries = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    return cloud.put(entries, cloud_dir.rstrip("/") + "/", recursive=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--input", help="local folder of HTML files to store first")
    parser.add_argument("--cloud-dir", default="/pages", help="cloud directory of the pages")
    parser.add_argument("--output", default="/index", help="cloud directory of the index")
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--fetch", metavar="FILE", help="fetch the whole index into a local file")
    parser.add_argument("words", nargs="*", help="words to look up")
    options = parser.parse_args()
    with sector.connect() as cloud:
        if options.input:
            print(store(cloud, options.input, options.cloud_dir))
        parts = build(cloud, options.cloud_dir, options.output, options.buckets)
        print(f"index in {len(parts)} files {options.output}/part.*")
        for word in options.words:
            print(word, look_up(cloud, parts, options.buckets, word)[:5])
        if options.fetch:
            fetch(cloud, parts, options.fetch)


if __name__ == "__main__":
    try:
        main()
    except (sector.SectorError, OSError) as error:
        sys.exit(f"inverted_index: {error}")
