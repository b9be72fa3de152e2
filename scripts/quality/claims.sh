#!/bin/sh
# What the field says of FP8, measured on the demo model: the figures of docs/CLAIMS.md.
#
#   scripts/quality/claims.sh OCTET MODEL CODE DOCS CALIBRATION.jsonl OUT [PART]
#
# CODE and DOCS are texts of the model's two domains that it has not seen, of 36,000 tokens or more;
# CALIBRATION has 512 samples or more of either, {"text": ..} a line. PART is formats, cache, scales,
# domains, roles, layers, rope or temperature. Rows of OUT/claims.txt are name, increase of perplexity, mean KL and share of the same top-1, against FP32.
set -eu
[ $# -ge 6 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
octet=$1 model=$2 code=$3 docs=$4 samples=$5 out=$6 part=${7:-all}
wants() { [ "$part" = all ] || [ "$part" = "$1" ]; }
mkdir -p "$out"
rows=$out/claims.txt
: > "$rows"

# compare NAME CANDIDATE TEXT FLAGS...: a row, and the whole of it in NAME.json.
compare() {
  name=$1 candidate=$2 text=$3
  shift 3
  if "$octet" eval compare "$candidate" --baseline "$model" --baseline-compute fp32 --text "$text" \
    --json "$out/$name.json" "$@" > "$out/$name.log" 2>&1; then
    python3 - "$name" "$out/$name.json" >> "$rows" <<'PY' || echo "$name: see $name.json" >> "$rows"
import json, sys
r = json.load(open(sys.argv[2]))
print(f"{sys.argv[1]:<34} {100 * r['perplexity_increase']:+7.2f} %  {r['kl_mean']:.5f}  {100 * r['top1_agreement']:.2f} %")
for b in r["by_position"][4:]:
    print(f"  {b['first']:>6} to {b['last']:<6} KL {b['kl_mean']:.5f}")
PY
  else
    echo "$name: failed" >> "$rows"
  fi
}
short="--max-tokens 24576 --convention chunks"
long="--max-tokens 49152 --convention chunks --window 8192"

# Per channel and token against per tensor.
if wants formats; then
  for s in fp8_channel fp8_tensor fp8_block fp8_group int8; do
    compare "scheme_$s" "$model" "$code" --scheme $s --attention bf16 --kv-cache-dtype bf16 $short
  done
fi

# The cache at long context: E4M3 and E5M2, alone and with all else in FP8; weights alone.
if wants cache; then
  for t in fp8_e4m3 fp8_e5m2; do
    compare "all_with_cache_$t" "$model" "$code" --scheme fp8_channel --attention bf16 --kv-cache-dtype $t $long
    compare "cache_alone_$t" "$model" "$code" --compute fp32 --kv-cache-dtype $t $long
  done
  compare "weights_alone" "$model" "$code" --scheme fp8_w8a16 --attention bf16 --kv-cache-dtype bf16 $long
  compare "fp8_attention" "$model" "$code" --scheme fp8_w8a16 --kv-cache-dtype fp8_e4m3 $short
fi

# Scales of inputs that are fixed: how they are chosen, from how much data, of which domain.
calibrated() { # NAME TEXT SAMPLES METHOD
  "$octet" calibrate "$model" --text "$2" --samples "$3" --out "$out/$1.calibration" --overwrite > /dev/null 2>&1
  "$octet" quantize "$model" --out "$out/$1" --overwrite --scheme fp8_tensor_static --calibration-file \
    "$out/$1.calibration" --input-scale-method "$4" > /dev/null 2>&1
}
if wants scales; then
  for m in max p99.9 p99.99 mse; do
    calibrated "static_$m" "$samples" 512 $m
    compare "static_$m" "$out/static_$m" "$code" --attention bf16 --kv-cache-dtype bf16 $short
  done
  for n in 50 256; do
    calibrated "static_$n" "$samples" $n max
    compare "static_$n" "$out/static_$n" "$code" --attention bf16 --kv-cache-dtype bf16 $short
  done
  for n in 8 50 512; do
    "$octet" quantize "$model" --out "$out/rounded_$n" --overwrite --rounding compensated --calibration "$samples" \
      --calibration-tokens $((n * 512)) > /dev/null 2>&1
    compare "rounded_$n" "$out/rounded_$n" "$code" --attention bf16 --kv-cache-dtype bf16 $short
  done
fi

# Judged on code: calibrated on what is judged last, on the other domain.
if wants domains; then
  tail -c 100000 "$code" > "$out/code.txt"
  for domain in code docs; do
    text=$docs
    [ $domain = code ] && text=$out/code.txt
    calibrated "domain_$domain" "$text" 50 max
    compare "static_on_$domain" "$out/domain_$domain" "$code" --attention bf16 --kv-cache-dtype bf16 $short
    "$octet" quantize "$model" --out "$out/rounded_$domain" --overwrite --rounding compensated --calibration "$text" \
      --calibration-tokens 24576 > /dev/null 2>&1
    compare "rounded_on_$domain" "$out/rounded_$domain" "$code" --attention bf16 --kv-cache-dtype bf16 $short
  done
fi

# Router, embedding and head, and each kind of linear, alone.
if wants roles; then
  "$octet" eval sensitivity "$model" --text "$code" --windows 32 --by role --high-roles --json "$out/roles.json" \
    > "$out/roles.txt" 2>&1
  "$octet" eval sensitivity "$model" --text "$code" --windows 32 --by role --scheme fp8_tensor --json \
    "$out/roles_tensor.json" > "$out/roles_tensor.txt" 2>&1
fi

# The first and the last layer in 16 bits.
if wants layers; then
  compare "first_last_none" "$model" "$code" --scheme fp8_channel $short
  "$octet" quantize "$model" --out "$out/preset" --overwrite --preset first-last-bf16 > /dev/null 2>&1
  compare "first_last" "$out/preset" "$code" $short
fi

# Scaled RoPE where none is needed: all tokens are within what the model was trained on.
if wants rope; then
  for kind in linear yarn ntk; do
    compare "rope_$kind" "$model" "$code" --compute fp32 $short --rope-scaling \
      "{\"rope_type\": \"$kind\", \"factor\": 4.0, \"original_max_position_embeddings\": 8192}"
  done
fi

# Temperature: how often FP8 and BF16 agree, and how often BF16 agrees with itself.
if wants temperature; then
  head -c 40000 "$code" | python3 -c '
import json, sys
lines = [l for l in sys.stdin.read().split("\n") if len(l) > 30]
for line in lines[:48]: print(json.dumps({"prompt": line}))' > "$out/prompts.jsonl"
  "$octet" eval sampling "$model" --compute fp8 --baseline "$model" --prompts "$out/prompts.jsonl" --max-tokens 32 --samples 8 \
    --temperatures 0,0.3,0.7,1,1.5 --top-ps 1 --json "$out/sampling.json" > "$out/sampling.txt" 2>&1 || true
fi

for report in "$rows" "$out/roles.txt" "$out/roles_tensor.txt" "$out/sampling.txt"; do
  [ ! -e "$report" ] || cat "$report"
done
