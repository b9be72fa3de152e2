#include "cli/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "backends/probe/observe.h"
#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/open_model.h"
#include "cli/output.h"
#include "cli/watched_work.h"
#include "engine/session.h"
#include "eval/text_windows.h"

namespace octet::cli {
namespace {

// Linears of one parent, role and width share an input: q, k and v; gate and up.
int64_t moment_bytes(const model::Model& model) {
  std::set<std::tuple<std::string, Role, int64_t>> inputs;
  int64_t bytes = 0;
  for (const model::LinearUse& use : model.linears()) {
    if (use.linear->role == Role::lm_head) continue;
    const std::string& name = use.linear->name;
    const int64_t width = use.linear->in;
    if (inputs.emplace(name.substr(0, name.rfind('.')), use.linear->role, width).second) {
      bytes += width * width * int64_t{sizeof(float)};
    }
  }
  return bytes;
}

void require_memory(const model::Model& model, const ops::BackendInfo& info) {
  const int64_t needed = moment_bytes(model);
  if (needed <= info.memory_bytes) return;
  throw Error({.what = "the moments of the model's inputs do not fit into memory",
               .where = "--calibration",
               .value = show_bytes(static_cast<double>(needed)),
               .accepted = show_bytes(static_cast<double>(info.memory_bytes)) + ", which are free",
               .fix = "quantize with --rounding nearest, or on a machine with more memory"});
}

std::vector<eval::Piece> windows_of(const CalibrationRun& run, const OpenModel& open) {
  std::vector<int32_t> ids = open.encode(read_text(run.text), run.text,
                                         {.add_special_tokens = false, .parse_special = false});
  if (ids.size() > static_cast<size_t>(run.tokens)) ids.resize(static_cast<size_t>(run.tokens));
  if (static_cast<int64_t>(ids.size()) < run.window) {
    throw Error({.what = "the calibration text is too short to say how inputs vary",
                 .where = run.text,
                 .value = fmt::format("{} tokens", ids.size()),
                 .accepted = fmt::format("{} tokens or more (one window); {} are advised",
                                         run.window, CalibrationRun().tokens)});
  }
  return eval::cut(ids, open.bos(), eval::Convention::windows, run.window, open.max_model_len());
}

}  // namespace

offline::InputMoments observe_inputs(const CalibrationRun& run, ThreadPool& threads) {
  OpenModel open({.path = run.model, .compute = "bf16"});
  const std::vector<eval::Piece> pieces = windows_of(run, open);
  const std::unique_ptr<ops::Backend> backend = open_backend({.threads = threads.size()});
  offline::InputMoments moments(threads);
  probe::ObservingBackend observing(*backend, [&](std::span<const ops::Linear* const> ws,
                                                  const Tensor& x) { moments.add(ws, x); });
  const model::Model& model = open.load(observing, eval::longest(pieces));
  require_memory(model, backend->info());
  engine::Session session(model, observing,
                          {.max_tokens = eval::longest(pieces), .logits_rows = 1});
  const int64_t total = eval::total_tokens(pieces);
  int64_t done = 0;
  WatchedWork work("calibrate", Progress::Unit::tokens);
  for (const eval::Piece& piece : pieces) {
    session.reset();
    session.extend(0, piece.tokens);
    done += static_cast<int64_t>(piece.tokens.size());
    work(done, total);
  }
  constexpr int64_t advised = 8192;
  if (total < advised) {
    log::warning(
        "{} tokens of calibration are few: below {}, rounding may fit the text rather than "
        "the model",
        total, advised);
  }
  return moments;
}

}  // namespace octet::cli
