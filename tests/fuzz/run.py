"""Coverage-guided fuzzing of one of targets.py: `python tests/fuzz/run.py TARGET [libFuzzer options]`."""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["sector", "cumulus", "tomllib", "targets", "s3_targets"]):
    import targets

if __name__ == "__main__":
    name = sys.argv[1]
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets.TARGETS[name])
    atheris.Fuzz()
