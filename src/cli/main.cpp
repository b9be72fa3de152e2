// octet VERB ...: finds the verb, runs it, and turns what it throws into an exit code.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "cli/output.h"
#include "cli/signals.h"
#include "cli/verbs.h"

namespace octet::cli {
namespace {

struct Verb {
  std::string_view name, summary;
  int (*run)(Args args);
};

constexpr Verb kVerbs[] = {
    {"serve", "an OpenAI-compatible server", run_serve},
    {"generate", "one completion, or a file of prompts", run_generate},
    {"chat", "a conversation in the terminal", run_chat},
    {"quantize", "a 16-bit checkpoint becomes an FP8 one", run_quantize},
    {"calibrate", "what the linears and the KV cache of a model see, for quantize", run_calibrate},
    {"pull", "a model is downloaded", run_pull},
    {"convert", "a GGUF file becomes a directory in Hugging Face layout", run_convert},
    {"eval", "perplexity, fidelity against a baseline, retrieval", run_eval},
    {"ladder", "from BF16 to FP8, one switch at a time: speed, bytes, quality", run_ladder},
    {"inspect", "tensors, precisions with their reasons, broken values", run_inspect},
    {"kernels", "which kernel runs each shape, and why", run_kernels},
    {"bench", "speed of this machine, or of a server under load", run_bench},
    {"versus", "two servers or models on the same prompts: speed and fidelity", run_versus},
    {"replay", "a request of a server's log, computed again bit for bit", run_replay},
    {"doctor", "what this machine has, what works here, what to fix", run_doctor},
};

std::string help() {
  std::string text =
      "octet VERB ...: an FP8 inference engine for large language models.\n\nVerbs:\n";
  for (const Verb& verb : kVerbs) text += fmt::format("  {:<12}{}\n", verb.name, verb.summary);
  return text +
         "\n`octet VERB --help` lists a verb's options; `octet --version` prints the version.\n"
         "Exit codes: 0 done, 1 failed gate or run, 2 bad usage or bad input, 129, 130 "
         "and 143 interrupted (serve: 0).\n";
}

std::string names() {
  std::string text;
  for (const Verb& verb : kVerbs) text += fmt::format("{}{}", text.empty() ? "" : ", ", verb.name);
  return text;
}

// To stderr. Unlike fmt::print it does not throw where that is full or closed.
void complain(const std::string& text) {
  std::fputs(octet::cli::without_controls(text).c_str(), stderr);
}

// A standard stream that is closed would lend its number to the next file that is opened, and our
// messages would go there. One that cannot be written takes its place.
void occupy_closed_streams() {
  int fd = open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDONLY);
  if (fd >= 0) close(fd);
}

int dispatch(std::vector<std::string> args) {
  if (args.empty()) {
    complain(help());
    return 2;
  }
  const std::string first = args.front();
  if (first == "--help" || first == "-h" || first == "help") {
    print(help());
    return 0;
  }
  if (first == "--version") {
    print("octet " OCTET_VERSION "\n");
    return 0;
  }
  const auto* verb = std::ranges::find(kVerbs, std::string_view(first), &Verb::name);
  if (verb == std::end(kVerbs)) {
    throw Error(
        {.what = "unknown verb", .value = first, .accepted = names(), .fix = "see octet --help"});
  }
  return verb->run(std::span(args).subspan(1));
}

}  // namespace
}  // namespace octet::cli

int main(int argc, char** argv) {
  // A reader that goes away (`octet ... | head`) ends the process silently, whatever was inherited.
  // A server has many readers, and `serve` ignores the signal instead.
  std::signal(SIGPIPE, SIG_DFL);
  octet::cli::occupy_closed_streams();
  try {
    return octet::cli::dispatch({argv + 1, argv + argc});
  } catch (const octet::Error& error) {
    octet::cli::complain(fmt::format("octet: {}\n", error.what()));
    return 2;
  } catch (const octet::cli::Interrupted& interrupted) {
    octet::cli::complain("octet: interrupted\n");
    return interrupted.exit_code();
  } catch (const std::filesystem::filesystem_error& error) {
    // A loop of links, a folder without permission: nothing of ours, wherever it is met.
    const octet::Error told({.what = "cannot use a file or folder",
                             .where = error.path1().string(),
                             .value = error.code().message(),
                             .accepted = "a file that can be read",
                             .fix = "look at it with `ls -l`"});
    octet::cli::complain(fmt::format("octet: {}\n", told.what()));
    return 2;
  } catch (const std::exception& fault) {
    octet::cli::complain(fmt::format("octet: internal error: {}\n", fault.what()));
    return 1;
  }
}
