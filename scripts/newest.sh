#!/bin/sh
# The newest installed version, 16 or later, of an LLVM tool: newest.sh clang++
# (16 is the first that knows the C++20 that Octet uses.)
set -eu
for version in 20 19 18 17 16; do
  if command -v "$1-$version"; then exit 0; fi
done
major=$("$1" --version 2>/dev/null | sed -n 's/.*version \([0-9]*\)\..*/\1/p' | head -n 1)
if [ "${major:-0}" -ge 16 ]; then
  command -v "$1"
  exit 0
fi
echo "no $1 of version 16 or newer; scripts/setup.sh --tests --lint installs it" >&2
exit 1
