// --baseline of `octet serve`: a second model for the microscope, on a backend of its own.
#pragma once

#include <memory>
#include <string>

#include "cli/open_model.h"
#include "engine/microscope.h"
#include "server/server.h"

namespace octet::cli {

struct BaselineOptions {
  std::string path;  // "" = none
  int threads = 1;   // of the CPU, for the microscope
  int64_t microscope_tokens = 2048;
};
void add_baseline_rows(OptionTable& table, BaselineOptions& options);

class Baseline {
 public:
  // Loads the model beside `served`, which is loaded and outlives this, as does `device`, the
  // served model's options. Prints the memory that it takes. Error unless it computes in 16 bits or
  // more and has the same tokenizer.
  Baseline(const BaselineOptions& options, const OpenModel& served, const BackendOptions& device);

  const server::ServedBaseline& served() const { return *served_; }

 private:
  std::unique_ptr<ops::Backend> backend_;
  OpenModel open_;
  std::unique_ptr<engine::Microscope> microscope_;
  std::optional<server::ServedBaseline> served_;
};

}  // namespace octet::cli
