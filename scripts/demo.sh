#!/bin/sh
# Quantizes the bundled model, compares it with its original, then serves it or ends with a sample:
#   demo.sh serve|demo [--port N]
# Leaves the FP8 checkpoint in build/models/octet-demo-fp8. Needs build/cpu/octet.
set -eu
cd "$(dirname "$0")/.."

octet=build/cpu/octet
source=models/octet-demo
quantized=build/models/octet-demo-fp8
scheme=fp8_block
port=8000

[ $# -ge 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
mode=$1
shift
case $mode in serve | demo) ;; *) echo "demo.sh: serve or demo, not '$mode'" >&2; exit 2 ;; esac
while [ $# -gt 0 ]; do
  case $1 in
    --port) port=$2; shift 2 ;;
    *) echo "demo.sh: unknown argument $1; accepted: --port N" >&2; exit 2 ;;
  esac
done

# The checkpoint is made anew when the scheme, any file of the source or the binary changes: a build
# of the same version may quantize otherwise.
stamp=$(echo $scheme; cksum "$octet" $source/*)
if [ "$(cat $quantized.stamp 2>/dev/null)" != "$stamp" ] || [ ! -d $quantized ]; then
  echo "Quantizing $source to FP8 ($scheme)"
  rm -rf $quantized $quantized.stamp
  "$octet" quantize $source --scheme $scheme --out $quantized
  echo "$stamp" >$quantized.stamp
fi

# The numbers under key $2 of the JSON $1; the first; the largest.
fields() { printf '%s' "$1" | grep -o "\"$2\": *[-+.0-9eE]*[0-9]" | sed 's/.*: *//'; }
field() { fields "$1" "$2" | head -n 1; }
largest() { fields "$1" "$2" | LC_ALL=C sort -g | tail -n 1; }
bytes() { cat "$1"/*.safetensors | wc -c; }

row() { awk -v name="$1" -v a="$2" -v b="$3" -v note="$4" \
        'BEGIN { printf "  %-34s %12s %12s   %s\n", name, a, b, note }'; }
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.2fx", b / a }'; }
percent() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%+.2f %%", 100 * (b / a - 1) }'; }
number() { awk -v format="$1" -v a="$2" -v factor="${3:-1}" 'BEGIN { printf format, a * factor }'; }

echo
row "$source" BF16 FP8 ""
a=$(bytes $source) b=$(bytes $quantized)
row "checkpoint, MB" "$(number %.1f "$a" 1e-6)" "$(number %.1f "$b" 1e-6)" "$(ratio "$a" "$b")"
for name in code docs; do
  result=$("$octet" eval compare $quantized --baseline $source --text $source/eval_$name.txt \
           --json -)
  a=$(field "$result" perplexity_baseline) b=$(field "$result" perplexity)
  row "perplexity, eval_$name.txt" "$(number %.3f "$a")" "$(number %.3f "$b")" "$(percent "$a" "$b")"
  row "  KL to BF16, mean" "" "$(number %.4f "$(field "$result" kl_mean)")" \
    "P99 $(number %.3f "$(field "$result" kl_p99)"), $(field "$result" tokens) tokens"
  row "  same most likely token" "" "$(number %.1f "$(field "$result" top1_agreement)" 100) %" ""
done
speed() { "$octet" bench latency "$1" --prompt-len 128 --output-len 64 --batch 1 --json -; }
# In turn, and the better of two runs each, as another program's load may fall on one run alone.
before='' after=''
for _ in 1 2; do
  before=$before$(speed $source)
  after=$after$(speed $quantized)
done
for name in decode prefill; do
  a=$(largest "$before" ${name}_tokens_per_s) b=$(largest "$after" ${name}_tokens_per_s)
  row "$name, tokens/s" "$(number %.0f "$a")" "$(number %.0f "$b")" \
    "$(ratio "$a" "$b"), the better of two runs"
done
echo

if [ "$mode" = serve ]; then
  echo "Serving on http://127.0.0.1:$port, with a console at that address. In another terminal:"
  echo "  curl http://127.0.0.1:$port/v1/completions -H 'Content-Type: application/json' \\"
  echo "    -d '{\"model\": \"octet-demo\", \"prompt\": \"def fibonacci(n):\", \"max_tokens\": 64, \"temperature\": 0}'"
  exec "$octet" serve $quantized --baseline $source --host 127.0.0.1 --port "$port" \
    --served-model-name octet-demo
fi
echo "A sample:"
echo
exec "$octet" generate $quantized --max-tokens 48 --temperature 0 --prompt 'class Stack:
    """A last-in, first-out container."""

    def __init__(self):
        self.items = []

    def push(self, item):
'
