#!/bin/sh
# What FP8 costs a real model, and that ours is the model that llama.cpp runs:
#   smollm2.sh TEXT [WINDOWS [CALIBRATION]]
# Perplexities of SmolLM2-135M-Instruct on the first WINDOWS (20) windows of 512 tokens of TEXT, by
# llama.cpp's convention. With a text CALIBRATION, which is not TEXT, also with weights that are rounded
# by it (build/models/smollm2-fp8-compensated, made once).
# Needs `make smollm2`; with a Python that has llama-cpp-python (PYTHON=...) also llama.cpp's own figure.
set -eu
text=$(realpath "${1:?usage: smollm2.sh TEXT [WINDOWS [CALIBRATION]]}")
[ -z "${3:-}" ] || calibration=$(realpath "$3")
cd "$(dirname "$0")/../.."

octet=${OCTET:-build/cpu/octet}
windows=${2:-20}

field() { sed -n "s/.*\"$2\": *\([-+.0-9eE]*\).*/\1/p" "$1" | head -n 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

base=""
row() {
  name=$1
  shift
  "$octet" eval perplexity "$@" --text "$text" --convention halves --max-tokens $((512 * windows)) \
    --json "$work/result.json"
  value=$(field "$work/result.json" perplexity)
  [ -n "$base" ] || base=$value
  awk -v name="$name" -v a="$base" -v b="$value" -v n="$(field "$work/result.json" tokens)" \
    'BEGIN { printf "%-38s %9.4f  %+6.2f %%  %d tokens\n", name, b, 100 * (b / a - 1), n }'
}
row "BF16" build/models/smollm2
row "BF16 weights, FP32 arithmetic" build/models/smollm2 --compute fp32
row "the GGUF itself, BF16" build/models/smollm2.gguf
row "FP8 of make smollm2, as it is served" build/models/smollm2-fp8
row "  KV cache FP8" build/models/smollm2-fp8 --kv-cache-dtype fp8
row "  attention FP8 too" build/models/smollm2-fp8 --kv-cache-dtype fp8 --attention fp8
for scheme in fp8_channel fp8_block fp8_group; do
  row "$scheme, rounded to the nearest" build/models/smollm2 --quantization $scheme
done
if [ -n "${calibration:-}" ]; then
  compensated=build/models/smollm2-fp8-compensated
  [ -d "$compensated" ] || "$octet" quantize build/models/smollm2 --out "$compensated" \
    --scheme fp8_group --rounding compensated --calibration "$calibration"
  row "fp8_group, compensated on that text" "$compensated"
fi
if [ -n "${PYTHON:-}" ]; then
  $PYTHON scripts/quality/llama_cpp_perplexity.py build/models/smollm2.gguf "$text" \
    --windows "$windows" | tail -n 1
fi
