#!/bin/sh
# Fetches the source of llama.cpp's Jinja engine into build/third_party/llama.cpp (some 0.5 MB of a
# package of 77 MB): fetch_jinja.sh. Does nothing, at once, when it is there. Needs python3 with pip.
set -eu
cd "$(dirname "$0")/.."

pins=scripts/requirements-build.txt
target=build/third_party/llama.cpp
cmp -s $pins $target/fetched.txt && exit 0

echo "Fetching the engine of chat templates from PyPI (77 MB, once)"
rm -rf build/third_party/download $target.new
mkdir -p build/third_party/download $target.new
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
  --only-binary scikit-build-core,packaging,pathspec,cmake,ninja --require-hashes \
  --dest build/third_party/download -r $pins
tar -xzf build/third_party/download/llama_cpp_python-*.tar.gz -C $target.new \
  --strip-components=3 --wildcards '*/vendor/llama.cpp/common/jinja/*' \
  '*/vendor/llama.cpp/common/json.*' '*/vendor/llama.cpp/common/unicode.*' \
  '*/vendor/llama.cpp/ggml/include/ggml.h' '*/vendor/llama.cpp/LICENSE'
cp $pins $target.new/fetched.txt
rm -rf $target build/third_party/download
mv $target.new $target
