#include "numerics/quant_format.h"

#include <charconv>

#include "base/error.h"

namespace octet {
namespace {

std::string print_extent(int32_t extent) {
  return extent == 0 ? "*" : std::to_string(extent);
}

// "*" or a positive number without sign or leading zero.
std::optional<int32_t> parse_extent(std::string_view text) {
  if (text == "*") return 0;
  if (text.empty() || text.front() < '1' || text.front() > '9') return std::nullopt;
  int32_t extent = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), extent);
  if (status != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return extent;
}

std::optional<Code> parse_code(std::string_view text) {
  for (const Code code : {Code::e4m3, Code::e5m2, Code::i8}) {
    if (name_of(dtype_of(code)) == text) return code;
  }
  return std::nullopt;
}

std::string_view name_of(ScaleType type) {
  switch (type) {
    case ScaleType::f32:
      return "f32";
    case ScaleType::e8m0:
      return "e8m0";
    case ScaleType::unit:
      return "unit";
  }
  throw Fault("not a ScaleType");
}

int64_t cells(int32_t extent, int64_t length) {
  if (length == 0) return 0;
  return extent == 0 ? 1 : (length + extent - 1) / extent;
}

}  // namespace

std::string to_string(const QuantFormat& format) {
  std::string text(name_of(dtype_of(format.code)));
  text += '[';
  text += print_extent(format.grid.rows);
  text += 'x';
  text += print_extent(format.grid.cols);
  text += ']';
  text += name_of(format.scale);
  return text;
}

std::optional<QuantFormat> parse_quant_format(std::string_view text) {
  QuantFormat format;
  const size_t open = text.find('['), cross = text.find('x', open), close = text.find(']', cross);
  if (open == text.npos || cross == text.npos || close == text.npos) return std::nullopt;

  const auto code = parse_code(text.substr(0, open));
  if (!code) return std::nullopt;
  format.code = *code;

  const auto rows = parse_extent(text.substr(open + 1, cross - open - 1));
  const auto cols = parse_extent(text.substr(cross + 1, close - cross - 1));
  if (!rows || !cols) return std::nullopt;
  format.grid = {*rows, *cols};

  for (const ScaleType type : {ScaleType::f32, ScaleType::e8m0, ScaleType::unit}) {
    if (name_of(type) == text.substr(close + 1)) {
      format.scale = type;
      return format;
    }
  }
  return std::nullopt;
}

ScaleShape scale_shape(const ScaleGrid& grid, int64_t rows, int64_t cols) {
  invariant(grid.rows >= 0 && grid.cols >= 0 && rows >= 0 && cols >= 0,
            "scale_shape: negative extent");
  return {cells(grid.rows, rows), cells(grid.cols, cols)};
}

}  // namespace octet
