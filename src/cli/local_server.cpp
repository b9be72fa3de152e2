#include "cli/local_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/mapped_file.h"

namespace octet::cli {

LocalServer::LocalServer(const std::string& model, const std::vector<std::string>& args,
                         const HeldSignals& signals) {
  std::string name = (std::filesystem::temp_directory_path() / "octet-serve-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) {
    throw Error({.what = "cannot make a folder", .where = name, .value = strerror(errno)});
  }
  folder_ = name;
  try {
    start(model, args);
    wait_until_ready(model, signals);
  } catch (...) {
    end();
    throw;
  }
}

LocalServer::~LocalServer() {
  end();
}

void LocalServer::start(const std::string& model, const std::vector<std::string>& args) {
  std::vector<std::string> words = {"octet",  "serve", model,         "--host",        "127.0.0.1",
                                    "--port", "0",     "--port-file", folder_ / "port"};
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const std::string log = folder_ / "log";
  const pid_t parent = getpid();
  child_ = fork();
  if (child_ < 0) throw Error({.what = "cannot start a process", .value = strerror(errno)});
  if (child_ > 0) return;
  // Only what is safe after a fork. The server ends with us, whatever ends us.
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigset_t none;  // what we hold back is for the server
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int out = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (getppid() != parent || out < 0) _exit(127);
  dup2(out, STDOUT_FILENO);
  dup2(out, STDERR_FILENO);
  execv("/proc/self/exe", argv.data());
  _exit(127);
}

void LocalServer::wait_until_ready(const std::string& model, const HeldSignals& signals) {
  const std::filesystem::path port = folder_ / "port";
  while (!std::filesystem::exists(port)) {
    int status = 0;
    if (waitpid(child_, &status, WNOHANG) == child_) {
      child_ = -1;
      const std::string log = read_text(folder_ / "log");
      throw Error({.what = "the model cannot be served",
                   .where = model,
                   .value = log.substr(log.size() - std::min<size_t>(log.size(), 900)),
                   .fix = "octet serve " + model + " shows the same"});
    }
    signals.check();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::ifstream(port) >> port_;
}

void LocalServer::end() {
  if (child_ > 0) {
    kill(child_, SIGTERM);
    waitpid(child_, nullptr, 0);
  }
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string LocalServer::url() const {
  return fmt::format("http://127.0.0.1:{}", port_);
}

}  // namespace octet::cli
