// What one should know about running models on this processor: `octet doctor` prints it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "backends/cpu/kernels/kernel.h"

namespace octet::cpu {

// How many nodes a list such as "0", "0-1" or "0,2-3" names (/sys/devices/system/node/online); 1 if
// it cannot be read.
int count_nodes(std::string_view list);
// Of this machine.
int numa_nodes();

// Sentences, none if there is nothing to say: whether the INT8 scheme is faster than FP8 with these
// capabilities, and what several nodes of memory mean.
std::vector<std::string> advice(const CpuCaps& caps, int numa_nodes);

}  // namespace octet::cpu
