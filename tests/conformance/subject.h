// What a conformance case runs on: any Backend, and any of its kernels.
//
// A second device joins by adding its subjects to subjects(): the cases know only this header.
#pragma once

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace octet::conformance {

struct Subject {
  std::string name;  // "cpu"
  // A backend on which `op` is run by the kernel of that name; both empty: its own choice.
  std::function<std::unique_ptr<ops::Backend>(const std::string& op, const std::string& kernel)>
      make;
  // The kernels that accept a problem.
  std::function<std::vector<std::string>(const ops::OpDesc&)> kernels;
  // Follows attention_rule.h in how P is rounded: then attention is also held to an oracle that
  // rounds P alike, which is far tighter.
  bool attention_rule = false;
  // A backend that chooses for each number of rows what is fastest: other kernels, and other bits.
  // Absent if there is no such difference.
  std::function<std::unique_ptr<ops::Backend>()> make_fastest;
};
inline std::ostream& operator<<(std::ostream& out, const Subject& subject) {
  return out << subject.name;
}

std::vector<Subject> subjects();

}  // namespace octet::conformance
