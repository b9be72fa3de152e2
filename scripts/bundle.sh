#!/bin/sh
# Packs what a machine with a GPU needs to run Octet, without its build tree:
#   bundle.sh BUILD_DIR OUT.tar.xz [BINARY...]
# Stripped octet and conformance_cuda (and further binaries of BUILD_DIR), the third-party libraries
# that they link (not glibc, libstdc++ or CUDA's), scripts/gpu.sh and the configs and tiny models that
# it runs. The cuda preset gives its binaries the rpath $ORIGIN/lib.
set -eu

[ $# -ge 2 ] || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
out=$(cd "$(dirname "$2")" && pwd)/$(basename "$2")
shift 2
cd "$(dirname "$0")/.."

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
root=$folder/octet
mkdir -p "$root/lib"

for name in octet tests/conformance_cuda "$@"; do
  if [ ! -x "$build/$name" ]; then
    echo "bundle.sh: $build/$name is not there: ninja -C $build $(basename "$name")" >&2
    exit 1
  fi
  binary=$root/$(basename "$name")
  strip -o "$binary" "$build/$name"
  # Lines: "libfmt.so.9 => /lib/x86_64-linux-gnu/libfmt.so.9 (0x...)".
  ldd "$build/$name" | awk '$2 == "=>" && $3 ~ /^\// { print $1, $3 }' |
    while read -r library path; do
      case $library in
        libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | ld-linux*) ;;
        libstdc++.so* | libgcc_s.so* | libcu* | libnv* | libnccl*) ;;
        *) [ -e "$root/lib/$library" ] || cp -L "$path" "$root/lib/$library"
           strip --strip-unneeded "$root/lib/$library" ;;
      esac
    done
done
cp scripts/gpu.sh "$root/"
mkdir -p "$root/models" "$root/tests"
cp -r models/configs "$root/models/"
# The golden models are a few hundred KB each; their checkpoints are all that gpu.sh reads of them.
for model in llama_mha llama_gqa_rope3 deepseek_v2_greedy deepseek_v3_groups; do
  mkdir -p "$root/tests/golden/$model"
  find "tests/golden/$model" -type f -size -2M -exec cp {} "$root/tests/golden/$model/" \;
done

tar -C "$folder" -cf - octet | xz --lzma2=preset=4,dict=256MiB >"$out"
bytes=$(wc -c <"$out")
echo "$out: $bytes bytes"
if [ "$bytes" -ge 20000000 ]; then
  echo "bundle.sh: too large, at most 20,000,000 bytes travel" >&2
  exit 1
fi
