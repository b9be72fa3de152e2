#!/bin/sh
# clang-tidy over src, by the rules of .clang-tidy: lint.sh [--changed | FILE...]
#   --changed  only the sources that differ from HEAD
# Takes minutes for everything: run it before a review, not in a loop. Kernels (.cu, .cuh) are left
# out: clang 19 cannot read the headers of CUDA 13. Host code that is compiled with CUDA alone is
# checked where there is an nvcc, by the commands of the cuda preset.
set -eu
cd "$(dirname "$0")/.."

case ${1:-} in
  "") files=$(find src -name '*.cpp' | sort) ;;
  --changed)
    files=$(git diff --name-only HEAD -- src; git ls-files --others --exclude-standard -- src)
    files=$(echo "$files" | grep '\.cpp$' || true) ;;
  *) files=$* ;;
esac
[ -n "$files" ] || exit 0
tidy=$(scripts/newest.sh clang-tidy)
[ -f build/cpu/compile_commands.json ] || cmake --preset cpu -DOCTET_TESTS=OFF >/dev/null
check() {  # BUILD_DIR, files on stdin
  xargs -r -P "$(nproc)" -n 1 "$tidy" -p "$1" --quiet --warnings-as-errors='*'
}
files=$(echo "$files" | tr ' ' '\n')
with_cuda='^src/backends/cuda/\|^src/cli/cuda_device'
failed=0
echo "$files" | { grep -v '^src/backends/cuda/' || true; } | check build/cpu || failed=1
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  [ -f build/cuda/compile_commands.json ] || cmake --preset cuda -DOCTET_TESTS=OFF >/dev/null
  echo "$files" | { grep "$with_cuda" || true; } | check build/cuda || failed=1
else
  echo "lint.sh: no nvcc: the code of the CUDA backend was not checked." >&2
fi
exit $failed
