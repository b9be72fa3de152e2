#!/bin/sh
# Runs what only a machine with a GPU can, and leaves its results as JSON and logs in OUT:
#   gpu.sh OUT [--quick]
# From a bundle (bundle.sh), or from a source tree with build/cuda. Exit code 1 if conformance or a
# comparison fails; every part runs all the same.
set -u

[ $# -ge 1 ] || { sed -n '2,5s/^# //p' "$0" >&2; exit 2; }
out=$1
quick=${2:-}
case $quick in "" | --quick) ;; *) echo "gpu.sh: unknown argument $quick; accepted: --quick" >&2; exit 2 ;; esac
mkdir -p "$out" || exit 1
out=$(cd "$out" && pwd)
cd "$(dirname "$0")" || exit 1
if [ -x ./octet ]; then
  root=. octet=./octet conformance=./conformance_cuda
else
  cd .. || exit 1
  root=. octet=build/cuda/octet conformance=build/cuda/tests/conformance_cuda
fi

failed=0
# part NAME COMMAND...: its output in NAME.log, a line on stdout.
part() {
  name=$1
  shift
  start=$(date +%s)
  if "$@" >"$out/$name.log" 2>&1; then result=ok; else result="FAILED ($?)" failed=1; fi
  echo "$name: $result, $(($(date +%s) - start)) s"
  [ "$result" = ok ] || tail -n 15 "$out/$name.log"
}

part doctor "$octet" doctor --json "$out/doctor.json"
part conformance "$conformance" --gtest_brief=1 --gtest_output="json:$out/conformance.json"

# The same tokens on the CPU and on the GPU: tiny models, in FP32 greedy and for few tokens, so that
# rounding does not turn an argmax; graphs and eager launches must agree to the bit.
for model in llama_mha llama_gqa_rope3 deepseek_v2_greedy deepseek_v3_groups; do
  path=$root/tests/golden/$model
  [ -d "$path" ] || continue
  printf '[[1, 2, 3, 4, 5], [7, 5, 3], [9, 9, 9, 9, 9, 9, 9]]' >"$out/prompts.json"
  for run in "cpu cpu" "graphs cuda" "eager cuda --enforce-eager"; do
    # shellcheck disable=SC2086  # a run is a name and options
    set -- $run
    name=$1
    shift
    part "tokens-$model-$name" "$octet" generate "$path" --device "$@" --compute fp32 \
      --prompt-file "$out/prompts.json" --max-tokens 12 --ignore-eos \
      --json "$out/tokens-$model-$name.json"
  done
  for name in graphs eager; do
    part "same-$model-$name" cmp "$out/tokens-$model-cpu.json" "$out/tokens-$model-$name.json"
  done
done

bench() {
  name=$1
  shift
  part "bench-$name" "$octet" bench "$@" --device cuda --random-weights --json "$out/bench-$name.json"
}
configs=$root/models/configs
small=$configs/llama-3.2-1b
for scheme in fp8_channel fp8_block none; do
  bench "latency-1b-$scheme" latency "$small" --scheme $scheme --prompt-len 512 --output-len 128
done
if [ -z "$quick" ]; then
  config=$configs/llama-3.1-8b
  for scheme in fp8_channel none; do
    bench "latency-8b-$scheme" latency "$config" --scheme $scheme --prompt-len 512 --output-len 256
    bench "throughput-8b-$scheme" throughput "$config" --scheme $scheme --batch 64 \
      --prompt-len 512 --output-len 128
  done
  bench latency-8b-eager latency "$config" --scheme fp8_channel --prompt-len 512 --output-len 64 \
    --enforce-eager
fi
exit $failed
