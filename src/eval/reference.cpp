#include "eval/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace octet::eval {
namespace {

using engine::Distribution;
using engine::row_of;

// Calls visit(first, logits) for the rows of each chunk that predict a scored token, in the order
// of the text: logits f32 [rows, vocab]; `first` counts scored tokens of all pieces.
void for_scored_rows(
    const Subject& subject, std::span<const Piece> pieces, const Advance& advance,
    FunctionRef<void(const Piece& piece, int64_t position, int64_t first, const Tensor& logits)>
        visit) {
  engine::Session session(subject.model, subject.backend,
                          session_options(subject, longest(pieces)));
  int64_t place = 0;
  for (const Piece& piece : pieces) {
    session.reset();
    session.extend(0, piece.tokens, engine::Wanted::all, [&](int64_t at, const Tensor& logits) {
      const int64_t first = std::max(at, piece.context - 1);
      const int64_t end =
          std::min(at + logits.rows(), static_cast<int64_t>(piece.tokens.size()) - 1);
      if (first < end) {
        visit(piece, first, place, logits.slice(first - at, end - first));
        place += end - first;
      }
      if (advance) advance(logits.rows());
    });
  }
}

void require_memory(int64_t tokens, int64_t vocab, int64_t free) {
  const int64_t needed = tokens * vocab * int64_t{sizeof(float)};
  if (free <= 0 || needed < free / 2) return;
  throw Error({.what = "the logits of the text do not fit into memory",
               .where = "--windows",
               .value = fmt::format("{} tokens of {} logits: {} MB", tokens, vocab, needed >> 20),
               .accepted = fmt::format("at most {} MB, half of what is free", free >> 21),
               .fix = "take fewer or shorter windows"});
}

std::optional<double> standard_error(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  if (values.size() < 2) return std::nullopt;
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double sum = 0;
  for (const double value : values) sum += (value - mean) * (value - mean);
  return std::sqrt(sum / (n - 1) / n);
}

}  // namespace

Reference::Reference(const Subject& subject, std::span<const Piece> pieces, ThreadPool& threads,
                     const Advance& advance)
    : pieces_(pieces),
      threads_(threads),
      vocab_(subject.model.config().vocab),
      tokens_(scored_tokens(pieces)) {
  const ops::BackendInfo& info = subject.backend.info();
  if (info.device.kind == DeviceKind::cpu) require_memory(tokens_, vocab_, info.memory_bytes);
  logits_.reserve(static_cast<size_t>(tokens_ * vocab_));
  Distribution row;
  double nll = 0;
  for_scored_rows(subject, pieces, advance,
                  [&](const Piece& piece, int64_t position, int64_t, const Tensor& logits) {
                    for (int64_t i = 0; i < logits.rows(); ++i) {
                      const std::span<const float> values = row_of(logits, i);
                      require_finite(values, "baseline",
                                     fmt::format("piece {} of the text", &piece - pieces.data()),
                                     position + i);
                      row.read(values);
                      nll -= row.log_probability(
                          static_cast<size_t>(piece.tokens[static_cast<size_t>(position + i) + 1]));
                      logits_.insert(logits_.end(), values.begin(), values.end());
                    }
                  });
  perplexity_ = std::exp(nll / static_cast<double>(tokens_));
}

Fidelity Reference::measure(const Subject& subject, const Advance& advance) const {
  invariant(subject.model.config().vocab == vocab_, "both runs have one vocabulary");
  const auto count = static_cast<size_t>(tokens_);
  std::vector<double> kl(count), nll(count);
  std::vector<uint8_t> same(count);
  struct Pair {
    Distribution kept, run;
  };
  std::vector<Pair> scratch(static_cast<size_t>(threads_.size()));
  for_scored_rows(
      subject, pieces_, advance,
      [&](const Piece& piece, int64_t position, int64_t first, const Tensor& logits) {
        threads_.parallel_for(logits.rows(), 1, [&](int64_t begin, int64_t end, int thread) {
          auto& [kept, run] = scratch[static_cast<size_t>(thread)];
          for (int64_t i = begin; i < end; ++i) {
            const auto place = static_cast<size_t>(first + i);
            require_finite(row_of(logits, i), "model",
                           fmt::format("piece {} of the text", &piece - pieces_.data()),
                           position + i);
            const RowSummary expected = kept.read(row(first + i)),
                             found = run.read(row_of(logits, i));
            const auto next =
                static_cast<size_t>(piece.tokens[static_cast<size_t>(position + i) + 1]);
            nll[place] = -run.log_probability(next);
            kl[place] = kept.divergence(run);
            same[place] = expected.best == found.best ? 1 : 0;
          }
        });
      });
  const auto mean = [&](const auto& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(count);
  };
  std::vector<double> by_piece;
  size_t at = 0;
  for (const Piece& piece : pieces_) {
    const auto scored = static_cast<size_t>(piece.scored());
    const auto begin = kl.begin() + static_cast<std::ptrdiff_t>(at);
    by_piece.push_back(std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(scored), 0.0) /
                       static_cast<double>(scored));
    at += scored;
  }
  return {.perplexity = std::exp(mean(nll)),
          .kl = mean(kl),
          .kl_error = standard_error(by_piece),
          .top1 = mean(same)};
}

}  // namespace octet::eval
