"""The include rules of the C core (ARCHITECTURE.md): base <- crypto <- udt, sgmp, sdc <- io; udt and sgmp do
not see each other; sim, test and fuzz are included by nobody; sockets and threads only in io."""

from __future__ import annotations

import re
import sys
from pathlib import Path

CORE = Path(__file__).resolve().parents[1] / "csrc"
MAY = {
    "include": {"include"},
    "base": {"include", "base"},
    "crypto": {"include", "base", "crypto"},
    "udt": {"include", "base", "crypto", "udt"},
    "sgmp": {"include", "base", "crypto", "sgmp"},
    "sdc": {"include", "base", "crypto", "sdc"},
    "io": {"include", "base", "crypto", "udt", "sgmp", "sdc", "io"},
    "sim": {"include", "base", "sim"},
}
SYSCALLS = {"sys/socket.h", "netinet/in.h", "pthread.h", "sys/epoll.h", "time.h", "unistd.h", "sys/eventfd.h"}
ALLOWED_SYSTEM = {"crypto": {"unistd.h"}}


def problems() -> list[str]:
    """One line for each include that breaks a rule."""
    found = []
    for folder, allowed in MAY.items():
        for path in sorted((CORE / folder).glob("*.[ch]")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
                if not match:
                    continue
                kind, name = match.groups()
                where = f"{path.relative_to(CORE.parent)}:{number}"
                if kind == "<":
                    if folder != "io" and name in SYSCALLS - ALLOWED_SYSTEM.get(folder, set()):
                        found.append(f"{where}: <{name}> belongs to csrc/io only")
                    continue
                target = name.split("/")[0] if "/" in name else folder
                if "/" not in name and not (CORE / folder / name).exists():
                    target = "include"
                if target not in allowed:
                    found.append(f"{where}: {folder} may not include {name}")
    return found


if __name__ == "__main__":
    lines = problems()
    print("\n".join(lines) or "include rules hold")
    sys.exit(1 if lines else 0)
