#!/bin/sh
# Formats the C++ and CUDA sources, or with --check lists those that are not formatted and fails.
set -eu
cd "$(dirname "$0")/.."

# One version everywhere, since versions differ in what they call formatted.
if command -v clang-format-14 >/dev/null; then
  tool=clang-format-14
elif [ -x build/venv/bin/clang-format ]; then
  tool=build/venv/bin/clang-format
else
  echo "format.sh: no clang-format 14; scripts/setup.sh --tests installs it" >&2
  exit 1
fi
case ${1:-} in
  "") options="-i" ;;
  --check) options="--dry-run -Werror" ;;
  *) echo "format.sh: unknown argument $1; accepted: --check" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086  # options is a list
find src tests bench -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' | sort |
  xargs -P "$(nproc)" -n 16 $tool $options
