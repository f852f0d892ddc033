"""What examples/terasort.py computes, by one plain program without Sector and NumPy.

python examples/reference/terasort.py --records 1000000 --seed 1 --output sorted.dat
"""

import argparse

MASK = (1 << 64) - 1


def scrambled(counter: int) -> int:
    """The 64-bit SplitMix generator at a position of its sequence."""
    z = ((counter + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def record(number: int, seed: int) -> bytes:
    """Key of 10 bytes, 32 hexadecimal digits of the number, 58 equal letters."""
    base = seed * 0x5851F42D4C957F2D
    head = scrambled((base + 2 * number) & MASK).to_bytes(8, "big")
    tail = scrambled((base + 2 * number + 1) & MASK).to_bytes(8, "big")[:2]
    return head + tail + b"%032x" % number + bytes([65 + number % 26]) * 58


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", required=True)
    options = parser.parse_args()
    records = [record(number, options.seed) for number in range(options.records)]
    records.sort(key=lambda data: data[:10])
    with open(options.output, "wb") as out:
        out.writelines(records)


if __name__ == "__main__":
    main()
