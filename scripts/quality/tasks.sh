#!/bin/sh
# The tasks of `octet eval` on a model and its 16-bit baseline: the figures of docs/QUALITY.md. By hand; hours
# on two cores. Answers are kept in RESULTS, so a run that was cut short goes on where it was.
#
#   scripts/quality/tasks.sh MODEL BASELINE DATA RESULTS [LIMIT]
#
# DATA has mmlu.jsonl, gsm8k.jsonl, HumanEval.jsonl or .jsonl.gz, and haystack.txt, a long text to hide facts
# in; what is missing is left out. OCTET= another binary.
set -eu
[ $# -ge 4 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 2; }
model=$1 baseline=$2 data=$3 results=$4 limit=${5:-200}
octet=${OCTET:-$(dirname "$0")/../../build/cpu/octet}
mkdir -p "$results"

# NAME TASK OPTIONS: one task; its report and its JSON bear the name.
ask() {
  name=$1 task=$2
  shift 2
  "$octet" eval "$task" "$model" --baseline "$baseline" --resume "$results/$name.answers.jsonl" \
    --json "$results/$name.json" --html "$results/$name.html" "$@"
}

[ ! -e "$data/mmlu.jsonl" ] || ask mmlu mmlu --data "$data/mmlu.jsonl" --limit "$limit"
[ ! -e "$data/gsm8k.jsonl" ] || ask gsm8k gsm8k --data "$data/gsm8k.jsonl" --limit "$limit"
for file in "$data/HumanEval.jsonl" "$data/HumanEval.jsonl.gz"; do
  [ ! -e "$file" ] || ask humaneval humaneval --data "$file" --max-tokens 512
done
for kind in needle multi_key multi_value code dialogue; do
  [ -e "$data/haystack.txt" ] || break
  ask "recall_$kind" needle --kind $kind --text "$data/haystack.txt" --lengths "${LENGTHS:-1024,4096}" \
    --count "${COUNT:-25}"
done
