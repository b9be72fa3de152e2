#!/bin/bash
# TSan over a server under load: tsan_load.sh [MINUTES]
#
#   Builds octet with the tsan preset and loads it for MINUTES (default 3): the end-to-end tests of
#   load, life, metrics, structured output and replay, then bench/serve/load.py with streams, clients
#   that leave, malformed requests, forms, scrapes of /metrics, kill -9 and drain, while the memory of
#   the cache is populated. Exit code 1 if TSan reports anything or a promise does not hold that has
#   nothing to do with speed.
#
# By hand, since a token costs some sixty times as much processor time as otherwise. Without address
# randomization, which older TSan runtimes do not survive on newer kernels.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${1:-3}

scripts/setup.sh --tests
cmake --preset tsan >/dev/null
cmake --build build/tsan --target octet

plain=(setarch "$(uname -m)" -R)
"${plain[@]}" true 2>/dev/null || plain=()
reports=build/tsan/reports
rm -rf "$reports"
mkdir -p "$reports"
export TSAN_OPTIONS="log_path=$PWD/$reports/report second_deadlock_stack=1"  # also after kill -9
octet=build/tsan/octet
failed=no

# Tests of deadlines may fail for want of speed, and those of memory by TSan's own: they are told, and
# only reports count.
"${plain[@]}" build/venv/bin/python tests/e2e/run.py "$octet" . \
  test_load test_life test_metrics test_structured test_replay ||
  echo "Some of these tests failed, which may be for want of speed or TSan's own memory alone."

"${plain[@]}" build/venv/bin/python bench/serve/load.py "$octet" models/octet-demo \
  --minutes "$minutes" --slow --structured 0.1 --only load,kill,drain \
  --serve-arg=--compute=fp8 --serve-arg=--kv-cache-memory=268435456 || failed=yes

if compgen -G "$reports/*" >/dev/null; then
  cat "$reports"/*
  echo "TSan reported $(cat "$reports"/* | grep -c '^SUMMARY') findings, above."
  failed=yes
else
  echo "TSan reported nothing."
fi
[ $failed = no ]
