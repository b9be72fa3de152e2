#!/bin/bash
# All tests: test.sh [--no-fuzz] [--sanitizers]
#   format check, build, ctest, a short run of every fuzz target; with --sanitizers also ASan and
#   UBSan on the unit and golden tests and TSan on engine and server (an hour on 2 cores).
# The last lines are ctest's summary and the time of every phase.
set -euo pipefail
cd "$(dirname "$0")/.."

sanitizers=no fuzz=yes
for arg in "$@"; do
  case $arg in
    --sanitizers) sanitizers=yes ;;
    --no-fuzz) fuzz=no ;;
    *) echo "test.sh: unknown argument $arg; accepted: --no-fuzz, --sanitizers" >&2; exit 2 ;;
  esac
done

times="" started=$SECONDS current=start
end_phase() {
  times+=$(printf '\n  %4d s  %s' $((SECONDS - started)) "$current")
}
phase() {
  end_phase
  started=$SECONDS current=$1
  printf '\n== %s\n' "$1"
}
report() {
  local status=$?
  end_phase
  printf '\nTime:%s\n\n' "$times"
  [ $status = 0 ] || printf 'FAILED in: %s\n\n' "$current"
  sed -n '/% tests passed/,$p' build/ctest.log 2>/dev/null || true
}
trap report EXIT
mkdir -p build
rm -f build/ctest.log

phase "setup"
scripts/setup.sh --tests

phase "format"
scripts/format.sh --check

phase "build"
cmake --preset cpu -DOCTET_TESTS=ON
cmake --build build/cpu

phase "tests"
ctest --test-dir build/cpu --output-on-failure | tee build/ctest.log

if [ $fuzz = yes ]; then
  phase "fuzz"
  scripts/fuzz.sh 20
fi

# sanitized PRESET CTEST_ARGS...: builds the binaries of the chosen tests alone, and runs them.
sanitized() {
  local preset=$1
  shift
  phase "$preset: build"
  cmake --preset "$preset" >/dev/null
  local names
  names=$(ctest --test-dir "build/$preset" -N "$@" | sed -n 's/^ *Test *#[0-9]*: *//p')
  [ -n "$names" ] || { echo "no test matches $*"; return 1; }
  # shellcheck disable=SC2086  # a list: a test has the name of its binary
  cmake --build "build/$preset" --target $names
  phase "$preset: tests"
  # Without address randomization, which older TSan runtimes do not survive on newer kernels.
  local plain=(setarch "$(uname -m)" -R)
  "${plain[@]}" true 2>/dev/null || plain=()
  "${plain[@]}" ctest --test-dir "build/$preset" --output-on-failure "$@"
}
if [ $sanitizers = yes ]; then
  sanitized asan -L 'unit|golden'
  sanitized tsan -R '^unit_(base|engine|server)$'
fi
