"""The inverted index of examples/inverted_index.py, computed by one plain program without Sector.

python examples/reference/inverted_index.py --input PAGES --cloud-dir /pages --output index.txt
"""

import argparse
import html
import os


def without_tags(text: str) -> str:
    """Every "<...>" replaced by a blank; a "<" that no ">" follows stays."""
    out = []
    rest = text
    while True:
        start = rest.find("<")
        end = rest.find(">", start) if start >= 0 else -1
        if end < 0:
            return "".join(out) + rest
        out.append(rest[:start])
        out.append(" ")
        rest = rest[end + 1 :]


def words(text: str) -> list[str]:
    """Runs of letters and digits without case."""
    found = []
    current = ""
    for letter in text:
        if letter.isalnum():
            current += letter
        elif current:
            found.append(current.casefold())
            current = ""
    if current:
        found.append(current.casefold())
    return found


def escaped(path: str) -> str:
    """A path with % and white space as in a URL."""
    return "".join(f"%{ord(letter):02X}" if letter in "% \t\n\r\v\f" else letter for letter in path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", required=True)
    parser.add_argument("--cloud-dir", default="/pages")
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    index: dict[str, dict[str, int]] = {}
    for folder, _, names in os.walk(options.input):
        for name in names:
            local = os.path.join(folder, name)
            cloud = escaped(options.cloud_dir.rstrip("/") + "/" + os.path.relpath(local, options.input))
            with open(local, encoding="utf-8", errors="replace", newline="") as file:
                text = html.unescape(without_tags(file.read()))
            for word in words(text):
                counts = index.setdefault(word, {})
                counts[cloud] = counts.get(cloud, 0) + 1
    lines = []
    for word, counts in index.items():
        pages = [f"{p}:{counts[p]}".encode() for p in sorted(counts, key=str.encode)]
        lines.append(word.encode() + b"\t" + b" ".join(pages) + b"\n")
    lines.sort()
    with open(options.output, "wb") as out:
        out.writelines(lines)


if __name__ == "__main__":
    main()
