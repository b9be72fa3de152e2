// A server of our own for as long as a verb needs one: a child process of this binary.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/signals.h"

namespace octet::cli {

class LocalServer {
 public:
  // Runs `octet serve MODEL ARGS...` on a free port of this machine, and waits until it accepts
  // connections. Its messages go to a file. Throws Error with the end of them if it does not start,
  // and Interrupted if one of `signals` comes before.
  LocalServer(const std::string& model, const std::vector<std::string>& args,
              const HeldSignals& signals);
  ~LocalServer();  // ends it
  LocalServer(const LocalServer&) = delete;
  LocalServer& operator=(const LocalServer&) = delete;

  std::string url() const;

 private:
  void start(const std::string& model, const std::vector<std::string>& args);
  void wait_until_ready(const std::string& model, const HeldSignals& signals);
  void end();

  std::filesystem::path folder_;
  pid_t child_ = -1;
  int port_ = 0;
};

}  // namespace octet::cli
