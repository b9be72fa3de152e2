#!/bin/sh
# Builds the libFuzzer targets with ASan and UBSan and runs each: fuzz.sh [SECONDS [NAME...]]
# Starts from tests/fuzz/corpus/NAME and keeps what it finds in build/fuzz/corpus/NAME. An input
# that breaks a parser is left in build/fuzz/broken/; give it to the binary to see it again.
set -eu
cd "$(dirname "$0")/.."

seconds=${1:-60}
[ $# -eq 0 ] || shift
cmake --preset asan >/dev/null
cmake --build build/asan --target tests/fuzz/all  # nothing that no target links
if [ $# -eq 0 ]; then
  for binary in build/asan/tests/fuzz/fuzz_*; do set -- "$@" "${binary##*/fuzz_}"; done
fi
mkdir -p build/fuzz/broken

run() {
  name=$1
  mkdir -p "build/fuzz/corpus/$name"
  seeds=tests/fuzz/corpus/$name
  [ -d "$seeds" ] || seeds=""
  log=build/fuzz/$name.log
  # shellcheck disable=SC2086  # seeds may be nothing
  if "build/asan/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=10 \
      -rss_limit_mb=2048 -print_final_stats=1 -artifact_prefix="build/fuzz/broken/$name-" \
      "build/fuzz/corpus/$name" $seeds >"$log" 2>&1; then
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    echo "fuzz $name: passed, $runs inputs in $seconds s"
  else
    tail -n 40 "$log"
    echo "fuzz $name: FAILED, see $log and build/fuzz/broken/"
    return 1
  fi
}

failed=0
for name in "$@"; do
  run "$name" || failed=1
done
exit $failed
