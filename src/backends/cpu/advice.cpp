#include "backends/cpu/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>

#include "backends/cpu/kernels/fast_linear.h"

namespace octet::cpu {
namespace {

// Time of a linear of 4,096 by 4,096 with scales a channel and a token, on its fastest row.
double linear_us(Code code, int64_t rows, const CpuCaps& caps) {
  const QuantFormat format{code, grids::row, ScaleType::f32};
  const ops::OpDesc desc{.op = "linear",
                         .m = rows,
                         .n = 4096,
                         .k = 4096,
                         .weight = dtype_of(code),
                         .weight_format = format,
                         .input_format = format,
                         .activation = DType::bf16};
  double least = 0;
  for (const LinearRow& row : fast_linear_rows()) {
    if (row.refuses(desc, caps)) continue;
    const double us = row.estimate_us(desc, caps);
    if (least == 0 || us < least) least = us;
  }
  return least;
}

}  // namespace

int count_nodes(std::string_view list) {
  int nodes = 0;
  const char *at = list.data(), *const end = at + list.size();
  while (at != end) {
    int first = 0, last = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc()) return 1;
    last = first;
    at = read.ptr;
    if (at != end && *at == '-') {
      read = std::from_chars(at + 1, end, last);
      if (read.ec != std::errc() || last < first) return 1;
      at = read.ptr;
    }
    nodes += last - first + 1;
    if (at == end || *at != ',') break;
    ++at;
  }
  return std::max(nodes, 1);
}

int numa_nodes() {
  std::ifstream file("/sys/devices/system/node/online");
  std::string list;
  return std::getline(file, list) ? count_nodes(list) : 1;
}

std::vector<std::string> advice(const CpuCaps& caps, int numa_nodes) {
  std::vector<std::string> out;
  constexpr int64_t prompt = 512;
  const double times = linear_us(Code::e4m3, prompt, caps) / linear_us(Code::i8, prompt, caps);
  if (times >= 1.5) {
    out.push_back(fmt::format(
        "this processor multiplies INT8 faster than FP8 (some {:.0f} times in the linears of a "
        "prompt): where prompts and batches count more than quality, `octet quantize --scheme "
        "int8`",
        times));
  }
  if (numa_nodes > 1) {
    out.push_back(fmt::format(
        "memory has {} NUMA nodes: weights lie on the node that first read them, and others read "
        "them slowly. One process a node is faster than one for all: `numactl --cpunodebind=0 "
        "--membind=0 octet ...`",
        numa_nodes));
  }
  return out;
}

}  // namespace octet::cpu
