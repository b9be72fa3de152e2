#include "cli/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "cli/chat_model.h"
#include "cli/output.h"
#include "cli/watched_work.h"
#include "engine/session.h"
#include "eval/text_windows.h"
#include "model/config_rope.h"
#include "offline/checkpoint_folder.h"
#include "offline/self_text.h"

namespace octet::cli {
namespace {

using Tokens = std::vector<int32_t>;

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

// Lines of JSON objects with "text" or "messages".
class JsonSamples {
 public:
  JsonSamples(const CalibrationText& text, const OpenModel& open, const std::string& model)
      : text_(text), open_(open), model_(model), bos_(open.bos()) {}

  std::vector<Tokens> read() {
    const std::string content = read_text(text_.source);
    const std::string_view all = content;
    int64_t number = 1;
    for (size_t begin = 0; begin < all.size(); ++number) {
      const size_t end = std::min(all.find('\n', begin), all.size());
      const std::string_view line = all.substr(begin, end - begin);
      begin = end + 1;
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      if (static_cast<int64_t>(samples_.size()) == text_.samples) break;
      try {
        add(line, fmt::format("{}:{}", text_.source, number));
      } catch (const Error& error) {
        if (broken_++ == 0) first_ = error.what();
      }
    }
    tell();
    return std::move(samples_);
  }

 private:
  void add(std::string_view line, const std::string& where) {
    const Json json = parse_json(line, where);
    const JsonView view(json, where);
    std::vector<int32_t> ids;
    if (view.has("messages")) {
      if (!chat_) chat_.emplace(open_chat(open_, model_, {}));
      const text::RenderedChat chat =
          chat_->render({.messages = OrderedJson::parse(dump_json(view.json()["messages"])),
                         .add_generation_prompt = false});
      ids = open_.encode(chat.text, where, chat.encode_options());
    } else {
      ids = open_.encode(view.get<std::string>("text"), where,
                         {.add_special_tokens = false, .parse_special = false});
      if (bos_) ids.insert(ids.begin(), *bos_);
    }
    const int64_t least = bos_ ? 2 : 1;
    if (static_cast<int64_t>(ids.size()) < least) {
      throw Error({.what = "the sample has no tokens", .where = where});
    }
    const auto most = static_cast<size_t>(std::min(text_.window, open_.max_model_len()));
    if (ids.size() > most) {
      ids.resize(most);
      ++cut_;
    }
    samples_.push_back(std::move(ids));
  }

  void tell() const {
    if (samples_.empty()) {
      throw Error({.what = "no line of the file is a sample to calibrate on",
                   .where = text_.source,
                   .value = broken_ == 0 ? "no lines"
                                         : fmt::format("{} lines; the first: {}", broken_, first_),
                   .accepted = R"(lines like {"text": ".."} or {"messages": [..]})"});
    }
    if (broken_ > 0) {
      log::warning("{} lines are passed over, {} are used; the first: {}", broken_, samples_.size(),
                   first_);
    }
    if (cut_ > 0) {
      log::info("{} samples are longer than {} tokens: what follows is left out", cut_,
                std::min(text_.window, open_.max_model_len()));
    }
  }

  const CalibrationText& text_;
  const OpenModel& open_;
  const std::string& model_;
  const std::optional<int32_t> bos_;
  std::optional<text::ChatTemplate> chat_;
  std::vector<Tokens> samples_;
  int64_t broken_ = 0, cut_ = 0;
  std::string first_;  // what is wrong with the first broken line
};

std::vector<Tokens> windows_of(const CalibrationText& text, const OpenModel& open) {
  std::vector<int32_t> ids = open.encode(read_text(text.source), text.source,
                                         {.add_special_tokens = false, .parse_special = false});
  const int64_t window = std::min(text.window, open.max_model_len());
  if (static_cast<int64_t>(ids.size()) < window) {
    throw Error({.what = "the calibration text is too short to say how inputs vary",
                 .where = text.source,
                 .value = fmt::format("{} tokens", ids.size()),
                 .accepted = fmt::format("{} tokens or more (one window); {} are advised", window,
                                         window * text.samples)});
  }
  std::vector<Tokens> samples;
  for (eval::Piece& piece :
       eval::cut(ids, open.bos(), eval::Convention::windows, window, open.max_model_len())) {
    if (static_cast<int64_t>(samples.size()) == text.samples) break;
    samples.push_back(std::move(piece.tokens));
  }
  return samples;
}

ModelOptions in_bf16(ModelOptions model) {
  const ModelOptions usual;
  model.compute = "bf16";
  model.scheme = usual.scheme;
  model.quantization = usual.quantization;
  model.attention = usual.attention;
  model.kv_cache_dtype = usual.kv_cache_dtype;
  model.kv_scale = usual.kv_scale;
  return model;
}

}  // namespace

CalibrationRun::CalibrationRun(const ModelOptions& model, CalibrationText text)
    : text_(std::move(text)),
      open_(in_bf16(model)),
      positions_(model::position_members(offline::read_config_json(model.path))) {
  if (text_.source == kOwnText) return;
  samples_ = text_.source.ends_with(".jsonl") ? JsonSamples(text_, open_, model.path).read()
                                              : windows_of(text_, open_);
}

void CalibrationRun::load(int threads) {
  backend_ = open_backend({.threads = threads});
  observing_ = std::make_unique<probe::ObservingBackend>(
      *backend_, [this](std::span<const ops::Linear* const> ws, const Tensor& x) {
        if (observer_.input) observer_.input(ws, x);
      });
  const int64_t window = std::min(text_.window, open_.max_model_len());
  const model::Model& model = open_.load(*observing_, window);
  if (text_.source != kOwnText) return;
  WatchedWork work("write", Progress::Unit::tokens);
  samples_ = offline::write_own_text(
      model, *backend_, {.samples = text_.samples, .window = window, .bos = open_.bos()},
      std::ref(work));
}

int64_t CalibrationRun::tokens() const {
  int64_t total = 0;
  for (const Tokens& sample : samples_) total += static_cast<int64_t>(sample.size());
  return total;
}

offline::Calibration CalibrationRun::summary() const {
  offline::Calibration all{.window = text_.window,
                           .samples = static_cast<int64_t>(samples_.size()),
                           .tokens = tokens(),
                           .samples_in_all = static_cast<int64_t>(samples_.size()),
                           .positions = positions_};
  for (const Tokens& sample : samples_) {
    all.longest = std::max(all.longest, static_cast<int64_t>(sample.size()));
  }
  return all;
}

void CalibrationRun::run(const CalibrationObserver& observer, int64_t first) {
  observer_ = observer;
  const int64_t longest = std::max<int64_t>(1, summary().longest);
  engine::Session session(open_.model(), *observing_, {.max_tokens = longest, .logits_rows = 1});
  std::map<const void*, int64_t> layer_of;  // by its cache
  for (int64_t layer = 0; layer < open_.config().layers; ++layer) {
    layer_of[&session.kv().gqa(layer)] = layer_of[&session.kv().mla(layer)] = layer;
  }
  observing_->observe_cache([&](const void* cache, const Tensor& k, const Tensor& v) {
    if (observer_.cache) observer_.cache(layer_of.at(cache), k, v);
  });
  int64_t done = 0;
  WatchedWork work("calibrate", Progress::Unit::tokens);
  for (int64_t i = 0; i < static_cast<int64_t>(samples_.size()); ++i) {
    const Tokens& tokens = samples_[static_cast<size_t>(i)];
    done += static_cast<int64_t>(tokens.size());
    if (i < first) continue;
    if (observer_.before) observer_.before(i);
    session.reset();
    session.extend(0, tokens);
    if (observer_.after) observer_.after(i);
    work(done, this->tokens());
  }
  observing_->observe_cache({});
  observer_ = {};
}

std::function<void(int64_t layer, const Tensor& k, const Tensor& v)> cache_into(
    offline::Calibrator& calibrator) {
  return [&calibrator](int64_t layer, const Tensor& k, const Tensor& v) {
    const std::string attention = fmt::format("model.layers.{}.self_attn", layer);
    if (v) {
      calibrator.add_cache(attention, k, v);
    } else {
      calibrator.add_latent(attention, k);
    }
  };
}

offline::InputMoments observe_inputs(CalibrationRun& run, ThreadPool& threads,
                                     const probe::ObservingBackend::Observer& also) {
  run.load(threads.size());
  require_memory(run.open().model(), run.backend_info());
  offline::InputMoments moments(threads);
  run.run({.input = [&](std::span<const ops::Linear* const> ws, const Tensor& x) {
    moments.add(ws, x);
    if (also) also(ws, x);
  }});
  constexpr int64_t advised = 8192;
  if (run.tokens() < advised) {
    log::warning(
        "{} tokens of calibration are few: below {}, rounding may fit the text rather than "
        "the model",
        run.tokens(), advised);
  }
  return moments;
}

}  // namespace octet::cli
