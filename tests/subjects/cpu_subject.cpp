// The CPU backend as a subject of the conformance suite.
#include "backends/cpu/cpu_backend.h"
#include "conformance/subject.h"

namespace octet::conformance {

std::vector<Subject> subjects() {
  const auto options = [](const std::string& op, const std::string& kernel) {
    cpu::CpuOptions o;
    o.threads = 2;
    if (!op.empty()) o.pins[op] = kernel;
    return o;
  };
  Subject subject;
  subject.name = "cpu";
  subject.make = [=](const std::string& op, const std::string& kernel) {
    return std::make_unique<cpu::CpuBackend>(options(op, kernel));
  };
  subject.kernels = [](const ops::OpDesc& desc) {
    static const cpu::CpuBackend all(cpu::CpuOptions{.threads = 2});
    return all.kernels_for(desc);
  };
  subject.attention_rule = true;
  return {subject};
}

}  // namespace octet::conformance
