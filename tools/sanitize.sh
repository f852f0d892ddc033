#!/bin/sh
# Everything in C under sanitizers: all cases (the simulator's among them, at a tenth of their length)
# and the fuzz corpora under AddressSanitizer and UndefinedBehaviorSanitizer, the cases with threads
# under ThreadSanitizer, and the Python tests of the C boundary with ASan loaded into Python.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)
jobs=$(nproc 2>/dev/null || echo 2)
started=$(date +%s)
say() { printf '== %s (%d s)\n' "$*" "$(($(date +%s) - started))" >&2; }

export UBSAN_OPTIONS=print_stacktrace=1
say "C cases under ASan and UBSan"
make -s -j"$jobs" -C csrc SAN=address,undefined BUILD=build/asan OPT='-O1 -g' build/asan/test
csrc/build/asan/test --scale=10
say "fuzz corpora under ASan and UBSan"
make -s -j"$jobs" -C csrc SAN=address,undefined BUILD=build/asan OPT='-O1 -g' replay

say "C cases with threads under TSan"
make -s -j"$jobs" -C csrc SAN=thread BUILD=build/tsan OPT='-O1 -g' build/tsan/test
# TSan wants the old layout of addresses; where that may not be asked for, it is tried as it is
norandom=
setarch -R true 2>/dev/null && norandom='setarch -R'
$norandom csrc/build/tsan/test --scale=10 io_ xfer_ tls_ udt_trace_

say "Python tests of the C boundary under ASan"
copy=build/asan-py
rm -rf "$copy"
mkdir -p "$copy/csrc"
cp -r sector cumulus tests pyproject.toml "$copy"
find "$copy" -name '_ffi*.so' -delete
for folder in base crypto udt sgmp sdc io include; do cp -r "csrc/$folder" "$copy/csrc"; done
flags='-fsanitize=address -fno-omit-frame-pointer'
(cd "$copy" && CFLAGS="$flags" LDFLAGS="$flags" "$root/.venv/bin/python" -m sector._udt._build) >"$copy/build.log" 2>&1 ||
    { tail -n 20 "$copy/build.log" >&2; exit 1; }
# Python itself leaks by design; leaks of the core are found by the C cases. Its allocator hides overruns.
cd "$copy"
LD_PRELOAD="$(gcc -print-file-name=libasan.so)" ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
    "$root/.venv/bin/python" -m pytest -p no:cacheprovider tests/integration/test_core_boundary.py
cd "$root"
say "sanitize: nothing found"
