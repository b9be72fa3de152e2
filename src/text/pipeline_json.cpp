#include "text/pipeline_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

namespace octet::text {
namespace {

namespace dom = simdjson::dom;

constexpr const char* kAcceptedNormalizers = "null, NFC, Prepend, Replace, or a Sequence of these";
constexpr const char* kAcceptedSplits =
    "Sequence, Split, Digits, Punctuation, Metaspace, ByteLevel";
constexpr const char* kAcceptedDecoders =
    "ByteLevel, Metaspace, or a Sequence of Replace, ByteFallback, Fuse, Strip";

// No tokenizer comes near. A stage takes time for every text, and rewriting ones multiply.
constexpr size_t kMostStages = 32;
constexpr size_t kMostGrowth = 64;

constexpr std::string_view kGpt2Pattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

// What the reference takes for punctuation: Unicode's, and ASCII's symbols.
constexpr std::string_view kPunctuation = "[\\p{P}$+<=>^`|~]";

std::string type_of(const JsonNode& node) {
  return std::string(node.at("type").string());
}

// Calls `each` for the node, or for the parts of a Sequence, which it calls `list`.
template <typename Each>
void for_each_part(const JsonNode& node, const char* list, size_t& count, const Each& each) {
  if (type_of(node) != "Sequence") {
    if (++count > kMostStages) {
      node.fail("too many stages", fmt::format("at most {} {}", kMostStages, list));
    }
    each(node);
    return;
  }
  const JsonNode parts = node.at(list);
  const dom::array items = parts.array();
  size_t i = 0;
  for (const dom::element item : items) for_each_part(parts.item(item, i++), list, count, each);
}
template <typename Each>
void for_each_part(const JsonNode& node, const char* list, const Each& each) {
  size_t count = 0;
  for_each_part(node, list, count, each);
}

class PipelineReader {
 public:
  explicit PipelineReader(TokenizerSpec& spec) : spec_(spec) {}

  void add_normalizer(const JsonNode& node);
  void add_pre_tokenizer(const JsonNode& node);
  void add_decoder(const JsonNode& node);
  bool byte_level() const { return byte_level_; }
  bool metaspace() const { return !spec_.before_split.empty(); }
  bool decodes_bytes() const { return decodes_bytes_; }

 private:
  // {"Regex": ...} or {"String": ...}.
  static Regex read_pattern(const JsonNode& pattern);
  static SplitBehavior read_behavior(const JsonNode& behavior);
  static std::string read_insertion(const JsonNode& node);
  void add_split(const JsonNode& node);
  void add_metaspace(const JsonNode& node);
  void add_decoder_step(const JsonNode& node);

  TokenizerSpec& spec_;
  bool byte_level_ = false;     // a ByteLevel pre-tokenizer was seen
  bool decodes_bytes_ = false;  // the decoder is ByteLevel
};

Regex PipelineReader::read_pattern(const JsonNode& pattern) {
  const auto expression = pattern.find("Regex");
  const auto literal = pattern.find("String");
  if (!expression == !literal) {
    pattern.fail("unsupported pattern", "{\"Regex\": ...} or {\"String\": ...}");
  }
  if (literal && literal->string().empty()) {
    literal->fail("empty pattern", "at least one character");
  }
  return expression ? Regex::compile(expression->string(), expression->place())
                    : Regex::literal(literal->string(), literal->place());
}

// What is put into every text, maybe everywhere: long ones would only serve to fill memory.
std::string PipelineReader::read_insertion(const JsonNode& node) {
  constexpr size_t most = 16;
  if (node.string().size() > most) node.fail("text to put in is too long", "at most 16 bytes");
  return std::string(node.string());
}

SplitBehavior PipelineReader::read_behavior(const JsonNode& behavior) {
  static constexpr std::pair<std::string_view, SplitBehavior> kBehaviors[] = {
      {"Isolated", SplitBehavior::isolated},
      {"Removed", SplitBehavior::removed},
      {"MergedWithPrevious", SplitBehavior::merged_with_previous},
      {"MergedWithNext", SplitBehavior::merged_with_next},
      {"Contiguous", SplitBehavior::contiguous},
  };
  const auto known = std::ranges::find(kBehaviors, behavior.string(),
                                       &std::pair<std::string_view, SplitBehavior>::first);
  if (known == std::end(kBehaviors)) {
    behavior.fail("unknown split behavior",
                  "Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
  }
  return known->second;
}

void PipelineReader::add_normalizer(const JsonNode& root) {
  for_each_part(root, "normalizers", [&](const JsonNode& node) {
    const std::string type = type_of(node);
    if (type == "NFC") {
      spec_.normalizer.push_back({.kind = Rewrite::nfc});
    } else if (type == "Prepend") {
      spec_.normalizer.push_back(
          {.kind = Rewrite::prepend, .text = read_insertion(node.at("prepend"))});
    } else if (type == "Replace") {
      spec_.normalizer.push_back({.kind = Rewrite::replace,
                                  .text = read_insertion(node.at("content")),
                                  .pattern = read_pattern(node.at("pattern"))});
    } else {
      node.at("type").fail("unsupported normalizer", kAcceptedNormalizers);
    }
  });
  if (const size_t growth = most_growth(spec_.normalizer); growth > kMostGrowth) {
    root.fail(fmt::format("the normalizer can make a text {} times as long", growth),
              fmt::format("at most {} times", kMostGrowth));
  }
}

void PipelineReader::add_pre_tokenizer(const JsonNode& root) {
  for_each_part(root, "pretokenizers", [&](const JsonNode& node) {
    const std::string type = type_of(node);
    if (byte_level_) {
      // It turns text into the byte alphabet, so what follows would split other characters.
      node.at("type").fail("pre-tokenizer behind ByteLevel", "ByteLevel as the last one");
    }
    if (type == "Split") {
      add_split(node);
    } else if (type == "Digits") {
      // "Numeric" is Nd, Nl and No in the reference.
      const bool each = node.flag("individual_digits", false);
      spec_.splits.push_back(
          {.pattern = Regex::compile(each ? "\\p{N}" : "\\p{N}+", node.place())});
    } else if (type == "Punctuation") {
      const auto behavior = node.find("behavior");
      spec_.splits.push_back(
          {.pattern = Regex::compile(kPunctuation, node.place()),
           .behavior = behavior ? read_behavior(*behavior) : SplitBehavior::isolated});
    } else if (type == "Metaspace") {
      add_metaspace(node);
    } else if (type == "ByteLevel") {
      byte_level_ = true;
      spec_.add_prefix_space = node.flag("add_prefix_space", true);
      if (node.flag("use_regex", true)) {
        spec_.byte_level = Regex::compile(kGpt2Pattern, node.place());
      }
    } else {
      node.at("type").fail("unsupported pre-tokenizer", kAcceptedSplits);
    }
  });
}

void PipelineReader::add_split(const JsonNode& node) {
  const SplitBehavior behavior = read_behavior(node.at("behavior"));
  spec_.splits.push_back({.pattern = read_pattern(node.at("pattern")),
                          .behavior = behavior,
                          .invert = node.flag("invert", false)});
}

// " " becomes "▁", and one goes in front; then, with "split", a piece ends before each "▁".
void PipelineReader::add_metaspace(const JsonNode& node) {
  const auto refuse = [&](const char* key, const char* accepted) {
    node.at(key).fail("unsupported Metaspace option", accepted);
  };
  if (metaspace() || !spec_.splits.empty()) {
    node.at("type").fail("Metaspace behind another pre-tokenizer", "Metaspace as the first one");
  }
  const JsonNode replacement = node.at("replacement");
  if (replacement.string() != kMetaspace) refuse("replacement", "\"\u2581\"");
  // Files of before 2024 say add_prefix_space.
  const auto scheme = node.find("prepend_scheme");
  const std::string prepend = scheme ? std::string(scheme->string())
                                     : (node.flag("add_prefix_space", true) ? "always" : "never");
  spec_.before_split.push_back({.kind = Rewrite::replace,
                                .text = std::string(kMetaspace),
                                .pattern = Regex::literal(" ", node.place())});
  if (prepend == "always" || prepend == "first") {
    spec_.before_split.push_back({.kind = Rewrite::prepend,
                                  .text = std::string(kMetaspace),
                                  .unless_there = true,
                                  .only_first = prepend == "first"});
  } else if (prepend != "never") {
    refuse("prepend_scheme", "always, first, never");
  }
  if (node.flag("split", true)) {
    spec_.splits.push_back({.pattern = Regex::literal(kMetaspace, node.place()),
                            .behavior = SplitBehavior::merged_with_next});
  }
}

void PipelineReader::add_decoder(const JsonNode& root) {
  for_each_part(root, "decoders", [&](const JsonNode& node) { add_decoder_step(node); });
}

void PipelineReader::add_decoder_step(const JsonNode& node) {
  const std::string type = type_of(node);
  if (type == "ByteLevel") {
    decodes_bytes_ = true;
  } else if (type == "ByteFallback") {
    spec_.replace_each_byte = true;
  } else if (type == "Metaspace") {
    const auto scheme = node.find("prepend_scheme");
    const bool prefix = scheme ? scheme->string() != "never" : node.flag("add_prefix_space", true);
    if (prefix) spec_.leading_space = LeadingSpace::drop_first_token;
  } else if (type == "Replace") {
    const auto from = node.at("pattern").find("String");
    const JsonNode to = node.at("content");
    if (!from || from->string() != kMetaspace || to.string() != " ") {
      node.at("pattern").fail("unsupported Replace of a decoder", "\"\u2581\" by \" \"");
    }
  } else if (type == "Strip") {
    const bool one_space = node.at("content").string() == " " && node.at("start").integer() == 1 &&
                           node.at("stop").integer() == 0;
    if (!one_space) node.at("type").fail("unsupported Strip", "one \" \" from the start");
    spec_.leading_space = LeadingSpace::drop_one;
  } else if (type != "Fuse") {
    node.at("type").fail("unsupported decoder", kAcceptedDecoders);
  }
}

}  // namespace

bool read_pipeline(const JsonNode& root, TokenizerSpec& spec) {
  PipelineReader reader(spec);
  if (const auto normalizer = root.find("normalizer")) reader.add_normalizer(*normalizer);
  const auto pre_tokenizer = root.find("pre_tokenizer");
  if (pre_tokenizer) reader.add_pre_tokenizer(*pre_tokenizer);
  const JsonNode decoder = root.at("decoder");
  reader.add_decoder(decoder);
  const bool own_spaces =
      reader.metaspace() || spec.replace_each_byte || spec.leading_space != LeadingSpace::keep;
  if (reader.byte_level() != reader.decodes_bytes() || (reader.byte_level() && own_spaces)) {
    (pre_tokenizer ? *pre_tokenizer : root)
        .fail("pre_tokenizer and decoder do not belong together",
              "ByteLevel in both, or in neither");
  }
  return reader.byte_level();
}

}  // namespace octet::text
