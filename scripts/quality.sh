#!/bin/sh
# What each part of the FP8 data path costs the demo model, as the Markdown table of docs/QUALITY.md:
#   quality.sh TEXTS [RESULTS]
# TEXTS is a folder with public_code.txt and public_docs.txt, long held-out texts. Each result is
# kept in RESULTS (build/quality) as JSON, and not computed again while it is there. Needs
# build/cpu/octet, or OCTET=PATH; TOKENS=36000 of each text are scored. About 20 minutes on two
# cores.
set -eu
[ $# -ge 1 ] || { sed -n '2,7s/^# //p' "$0" >&2; exit 2; }
texts=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
results=${2:-build/quality}
octet=${OCTET:-build/cpu/octet}
tokens=${TOKENS:-36000}
model=models/octet-demo
policy=scripts/quality
mkdir -p "$results"

# compare NAME FLAGS...: both texts against FP32.
compare() {
  name=$1
  shift
  for text in code docs; do
    file=$results/${name}_$text.json
    [ -s "$file" ] || "$octet" eval compare $model "$@" --baseline $model --baseline-compute fp32 \
      --text "$texts/public_$text.txt" --convention chunks --window 2048 --max-tokens "$tokens" \
      --json "$file" >&2
  done
}
# The first of that name: the figure of the whole text stands before those of its parts.
field() { sed -n "s/.*\"$2\": *\([-+.0-9eE]*\).*/\1/p" "$results/$1.json" | head -n 1; }

# row TITLE NAME KL_CODE KL_DOCS FLAGS...: a line of the table, beside the KL of a simulation.
row() {
  title=$1 name=$2 kl_code=$3 kl_docs=$4
  shift 4
  compare "$name" "$@"
  awk -v title="$title" -v flags="$*" -v ec="$kl_code" -v ed="$kl_docs" \
    -v pc="$(field "${name}_code" perplexity_increase)" \
    -v pd="$(field "${name}_docs" perplexity_increase)" \
    -v kc="$(field "${name}_code" kl_mean)" -v kd="$(field "${name}_docs" kl_mean)" \
    -v qc="$(field "${name}_code" kl_p99)" -v qd="$(field "${name}_docs" kl_p99)" \
    -v tc="$(field "${name}_code" top1_agreement)" \
    -v td="$(field "${name}_docs" top1_agreement)" 'BEGIN {
      expected = ec == "-" ? "" : sprintf("%s / %s", ec, ed)
      ratio = ec == "-" ? "" : sprintf("%.2f / %.2f", kc / ec, kd / ed)
      printf "| %s | %+.2f / %+.2f %% | %.4f / %.4f | %s | %s | %.3f / %.3f | %.1f / %.1f %% | `%s` |\n",
        title, 100 * pc, 100 * pd, kc, kd, expected, ratio, qc, qd, 100 * tc, 100 * td, flags }'
}

echo "| variant | perplexity, code / docs | KL to FP32 | simulated KL | ratio | KL, P99 | same top-1 | flags |"
echo "|---|---|---|---|---|---|---|---|"
row "BF16 run" bf16 0.0006 0.0007 --compute bf16
row "W E4M3 per channel" w 0.0068 0.0083 --compute fp32 --policy $policy/weights_channel.json
row "A E4M3 per token" a 0.0044 0.0051 --compute fp32 --policy $policy/inputs_token.json
row "W channel + A token" wa 0.0107 0.0125 --compute fp32 --policy $policy/channel_token.json
row "W channel + A per tensor (dynamic)" wa_tensor 0.0109 0.0130 \
  --compute fp32 --policy $policy/channel_tensor.json
row "W 128x128 + A 1x128" wa_block 0.0099 0.0119 --compute fp32 --policy $policy/block_group.json
row "W channel + A token + latent E4M3 per 128" wa_latent 0.0107 0.0127 \
  --compute fp32 --policy $policy/channel_token.json --kv-cache-dtype fp8_e4m3
row "latent E4M3 per 128 alone" latent 0.0016 0.0019 --compute fp32 --kv-cache-dtype fp8_e4m3
row "latent E5M2 (unscaled) alone" latent_e5m2 0.0061 0.0073 \
  --compute fp32 --kv-cache-dtype fp8_e5m2 --kv-scale unit
row "router E4M3 alone" router 0.0013 0.0020 --compute fp32 --policy $policy/router.json
row "**all FP8**: fp8_channel, latent, attention" all_channel - - --scheme fp8_channel
row "**all FP8**: fp8_block, latent, attention" all_block - - --scheme fp8_block

echo
echo "| retrieval, 25 facts of each length | 1,024 | 2,048 | 4,096 | 8,192 |"
echo "|---|---|---|---|---|"
for scheme in fp8_channel fp8_block; do
  line="| all FP8, $scheme |"
  for length in 1024 2048 4096 8192; do
    file=$results/needle_${scheme}_$length.json
    [ -s "$file" ] || "$octet" eval needle $model --scheme $scheme --lengths $length --count 25 \
      --text "$texts/public_docs.txt" --json "$file" >&2
    line="$line $(awk -v share="$(field "needle_${scheme}_$length" value)" 'BEGIN { print 25 * share }') |"
  done
  echo "$line"
done
