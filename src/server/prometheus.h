// The text format that Prometheus scrapes (version 0.0.4).
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "engine/metrics.h"

namespace octet::server {

using Labels = std::span<const std::pair<std::string_view, std::string>>;

class PrometheusText {
 public:
  // What the samples that follow belong to; `type` is counter, gauge or histogram.
  void family(std::string_view name, std::string_view type, std::string_view help);
  // Of the family that was begun last.
  void sample(double value, Labels labels = {});
  void histogram(const engine::Histogram::View& view, Labels labels = {});

  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view suffix, Labels labels, std::pair<std::string_view, std::string> more,
            double value);

  std::string text_;
  std::string name_;
};

}  // namespace octet::server
