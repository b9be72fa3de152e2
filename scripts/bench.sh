#!/bin/sh
# Batch-1 speed of a known shape with random weights, BF16 against FP8, each beside the memory
# bandwidth measured in the same run: bench.sh [CONFIG]
set -eu
cd "$(dirname "$0")/.."

config=${1:-models/configs/llama-3.2-1b}
for scheme in none fp8_block; do
  echo "$config, scheme $scheme"
  build/cpu/octet bench latency "$config" --random-weights --scheme $scheme \
    --prompt-len 512 --output-len 64 --batch 1
done
