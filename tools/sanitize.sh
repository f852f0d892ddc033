#!/bin/sh
# C tests under AddressSanitizer + UndefinedBehaviorSanitizer and under ThreadSanitizer, and the
# transport tests of Python with the core built under ASan. Long cases run at a tenth of their length.
set -eu
cd "$(dirname "$0")/.."
jobs=$(nproc 2>/dev/null || echo 2)
printf '== C tests under ASan and UBSan\n' >&2
make -s -j"$jobs" -C csrc SAN=address,undefined BUILD=build/asan OPT='-O1 -g' build/asan/test
csrc/build/asan/test --scale=10
printf '== C tests of the loop under TSan\n' >&2
make -s -j"$jobs" -C csrc SAN=thread BUILD=build/tsan OPT='-O1 -g' build/tsan/test
setarch -R csrc/build/tsan/test --scale=10 io_ xfer_
printf 'sanitize: nothing found\n' >&2
