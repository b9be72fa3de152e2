// Tokens a second of CPU time: octet_bench_text DIR FILE, DIR with a tokenizer.json, FILE a text.
// Three figures: the whole file in one call (the best of five), its lines one by one, and the file
// with offsets.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <string_view>

#include "base/error.h"
#include "base/mapped_file.h"
#include "text/tokenizer.h"

namespace {

using octet::text::Tokenizer;

// What this thread has computed, so that a busy machine changes little.
double cpu_seconds() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

template <typename Run>
void measure(const char* name, size_t bytes, Run run) {
  double best = 1e9;
  size_t tokens = 0;
  for (int i = 0; i < 5; ++i) {
    const double begin = cpu_seconds();
    tokens = run();
    best = std::min(best, cpu_seconds() - begin);
  }
  const double count = static_cast<double>(tokens);
  std::printf("%-14s %8zu tokens  %6.2f Mtok/s  %6.1f MB/s\n", name, tokens, count / best / 1e6,
              static_cast<double>(bytes) / best / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: octet_bench_text DIR FILE\n", stderr);
    return 2;
  }
  try {
    const double begin = cpu_seconds();
    const Tokenizer tokenizer = Tokenizer::load(argv[1]);
    std::printf("loaded in %.2f s\n", cpu_seconds() - begin);
    const std::string text = octet::read_text(argv[2]);
    measure("whole", text.size(), [&] { return tokenizer.encode(text).size(); });
    measure("by line", text.size(), [&] {
      size_t tokens = 0;
      for (std::string_view rest = text; !rest.empty();) {
        const size_t end = std::min(rest.find('\n'), rest.size() - 1) + 1;
        tokens += tokenizer.encode(rest.substr(0, end)).size();
        rest.remove_prefix(end);
      }
      return tokens;
    });
    measure("with offsets", text.size(),
            [&] { return tokenizer.encode_with_offsets(text).size(); });
  } catch (const octet::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
