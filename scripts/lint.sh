#!/bin/sh
# clang-tidy over src, by the rules of .clang-tidy: lint.sh [--changed | FILE...]
#   --changed  only the sources that differ from HEAD
# Takes minutes for everything: run it before a review, not in a loop.
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
echo "$files" | tr ' ' '\n' |
  xargs -P "$(nproc)" -n 1 "$tidy" -p build/cpu --quiet --warnings-as-errors='*'
