"""Coverage-guided fuzzing of one of targets.py: `python tests/fuzz/run.py TARGET [libFuzzer options]`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

if __name__ == "__main__":
    name = sys.argv[1]
    module = (
        "s3_targets" if name.startswith("py_s3_") else "sector_targets"
    )  # both take twice as long to load
    with atheris.instrument_imports(include=["sector", "cumulus", "tomllib", "message_shapes", module]):
        targets = importlib.import_module(module)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets.TARGETS[name])
    atheris.Fuzz()
