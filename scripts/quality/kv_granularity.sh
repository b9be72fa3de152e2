#!/bin/sh
# What the granularity of a KV cache's scales is worth, the cache alone: the table of docs/QUALITY.md.
#
#   scripts/quality/kv_granularity.sh OCTET MODEL CALIBRATION TEXT OUT [FLAGS of both sides]
#
# MODEL is a 16-bit checkpoint, CALIBRATION and TEXT are texts that have nothing in common. Every row has
# the same weights on both sides, in FP8, and the same arithmetic (--compute bf16), so that they differ in
# the cache alone, which is BF16 in the baseline. Rows of OUT/kv.txt are the cache, increase of perplexity,
# mean KL and share of the same top-1. What is there is not made again.
set -eu
[ $# -ge 5 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
octet=$1 model=$2 calibration=$3 text=$4 out=$5
shift 5
mkdir -p "$out"
[ -f "$out/calibration.json" ] ||
  "$octet" calibrate "$model" --text "$calibration" --out "$out/calibration.json" > "$out/calibrate.log" 2>&1

# checkpoint NAME FLAGS...: of the model, in OUT/NAME.
checkpoint() {
  name=$1
  shift
  [ -d "$out/$name" ] ||
    "$octet" quantize "$model" --out "$out/$name" --scheme fp8_group "$@" > "$out/$name.log" 2>&1
}
calibrated() { checkpoint "$1" --calibration-file "$out/calibration.json" --kv-scale-granularity "$1"; }

# row NAME CHECKPOINT DTYPE FLAGS...
row() {
  name=$1 made=$out/$2 type=$3
  shift 3
  file=$out/$(basename "$text" .txt).$(echo "$name" | tr ' ,' '__').json
  [ -f "$file" ] || "$octet" eval compare "$made" --baseline "$made" --compute bf16 --baseline-compute bf16 \
    --kv-cache-dtype "$type" --text "$text" --json "$file" "$@" > /dev/null 2> "$file.log" || true
  python3 - "$name" "$file" <<'PY' | tee -a "$out/kv.txt"
import json, sys
result = json.load(open(sys.argv[2]))
print(f"{sys.argv[1]:<38} {100 * result['perplexity_increase']:+6.2f} %  {result['kl_mean']:.5f}  "
      f"{100 * result['top1_agreement']:.2f} %")
PY
}

checkpoint plain
if grep -q kv_lora_rank "$model/config.json"; then
  for granularity in group channel; do calibrated $granularity; done
  row "E4M3 by token and group" plain fp8 "$@"
  row "E4M3 by group, fixed" group fp8 "$@"
  row "E4M3 by dimension, fixed" channel fp8 "$@"
  row "E4M3 without scales" plain fp8 --kv-scale unit "$@"
  row "INT8 by token and group" plain int8_per_token_group "$@"
  row "INT8 the same, and dimension" channel int8_per_token_group "$@"
else
  for granularity in tensor head channel; do calibrated $granularity; done
  row "E4M3 by group of 1024 tokens and head" plain fp8 "$@"
  row "E4M3 by tensor, fixed" tensor fp8 "$@"
  row "E4M3 by head, fixed" head fp8 "$@"
  row "E4M3 by head and dimension, fixed" channel fp8 "$@"
  row "E4M3 by token and head" plain fp8_per_token_head "$@"
  row "INT8 by token and head" plain int8_per_token_head "$@"
  row "INT8 the same, and dimension, fixed" channel int8_per_token_head "$@"
fi
