#!/bin/sh
# Fetches the C++ core of xgrammar into build/third_party/xgrammar (some 2 MB of a package of 3 MB):
# fetch_xgrammar.sh. Does nothing, at once, when it is there. Needs python3 with pip.
set -eu
cd "$(dirname "$0")/.."

pins=scripts/requirements-grammar.txt
target=build/third_party/xgrammar
cmp -s $pins $target/fetched.txt && exit 0

echo "Fetching the engine of structured output from PyPI (3 MB, once)"
download=$target.download
rm -rf $download $target.new
mkdir -p $download $target.new
python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary xgrammar \
  --require-hashes --dest $download -r $pins
tar -xzf $download/xgrammar-*.tar.gz -C $target.new --strip-components=1 \
  --wildcards --no-wildcards-match-slash '*/cpp' '*/include' '*/LICENSE' '*/NOTICE' \
  '*/3rdparty/picojson/picojson.h' '*/3rdparty/dlpack/include' '*/3rdparty/dlpack/LICENSE'
cp $pins $target.new/fetched.txt
rm -rf $target $download
mv $target.new $target
