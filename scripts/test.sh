#!/bin/bash
# All tests: test.sh [--no-fuzz] [--asan] [--tsan] [--cuda] [--sanitizers]
#   format check, build, ctest, and 10 s of every fuzz target (built by clang with ASan and UBSan).
#   --asan        ASan and UBSan on the unit tests and the golden tests of the tiny models
#   --tsan        TSan on base, engine, load and server: all that shares memory between threads
#   --cuda        compiles all CUDA code where there is an nvcc; needs no GPU, runs nothing
#   --sanitizers  --asan --tsan
# The last lines are ctest's summary and the time of every phase: wall, and CPU of all processes.
set -euo pipefail
cd "$(dirname "$0")/.."

asan=no tsan=no cuda=no fuzz=yes
for arg in "$@"; do
  case $arg in
    --asan) asan=yes ;;
    --tsan) tsan=yes ;;
    --sanitizers) asan=yes tsan=yes ;;
    --cuda) cuda=yes ;;
    --no-fuzz) fuzz=no ;;
    *)
      echo "test.sh: unknown argument $arg; accepted:" \
        "--no-fuzz, --asan, --tsan, --sanitizers, --cuda" >&2
      exit 2 ;;
  esac
done

summary="" started=$SECONDS used=0 current=start
end_phase() {
  local now
  times >build/times.txt  # not in a pipe, whose shell has no children to count
  now=$(awk 'NR == 2 { gsub(/[ms]/, " "); print int($1 * 60 + $2 + $3 * 60 + $4) }' build/times.txt)
  summary+=$(printf '\n  %5d s wall %5d s CPU  %s' $((SECONDS - started)) $((now - used)) "$current")
  used=$now
}
phase() {
  end_phase
  started=$SECONDS current=$1
  printf '\n== %s\n' "$1"
}
report() {
  local status=$?
  end_phase
  printf '\nTime:%s\n\n' "$summary"
  [ $status = 0 ] || printf 'FAILED in: %s\n\n' "$current"
  sed -n '/% tests passed/,$p' build/ctest.log 2>/dev/null || true
}
mkdir -p build
rm -f build/ctest.log
trap report EXIT

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
  scripts/fuzz.sh 10
fi

# sanitized PRESET TARGET...: builds the test binaries and runs each. Without address randomization,
# which older TSan runtimes do not survive on newer kernels.
sanitized() {
  local preset=$1 test filter
  shift
  phase "$preset: build"
  cmake --preset "$preset" >/dev/null
  cmake --build "build/$preset" --target "$@"
  local plain=(setarch "$(uname -m)" -R)
  "${plain[@]}" true 2>/dev/null || plain=()
  for test in "$@"; do
    phase "$preset: $test"
    filter='*'
    # The demo model takes a quarter of an hour under ASan; the tiny ones, of every kind, seconds.
    [ "$test" != golden ] || filter='*TinyModel*'
    "${plain[@]}" timeout 1200 "build/$preset/tests/$test" --gtest_brief=1 --gtest_filter="$filter"
  done
}
if [ $asan = yes ]; then
  sanitized asan unit_base unit_numerics unit_tensor unit_ops unit_model unit_sched unit_text \
    unit_hub unit_load unit_offline unit_eval unit_cpu unit_engine unit_server golden
fi
if [ $tsan = yes ]; then
  sanitized tsan unit_base unit_engine unit_load unit_server
fi

if [ $cuda = yes ]; then
  phase "cuda: build"
  if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
    cmake --preset cuda -DOCTET_TESTS=ON >/dev/null
    cmake --build build/cuda --target octet conformance_cuda
  else
    echo "No nvcc: the CUDA code is not compiled."
  fi
fi
