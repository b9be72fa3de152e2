// tokenizer.json from a GGUF file's metadata (models-numerics A.10, B.1, B.2; llama.cpp's
// llama-vocab.cpp for what the names of pre-tokenizers stand for).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>

#include "base/json.h"
#include "model/gguf/hf_files.h"

namespace octet::model::gguf {
namespace {

enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

constexpr int64_t kMostTokens = int64_t{1} << 22;
constexpr size_t kLongestMerged = 256;           // bytes of a token that is put together of others
constexpr size_t kMostMerges = size_t{1} << 22;  // vocabularies have some two a token

constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// How text is cut before it is merged, by the name that the file gives.
struct PreTokenizerRow {
  std::string_view name;
  enum { gpt2, digits_gpt2, pattern } kind;
  const char* regex = nullptr;
  bool llama3 = false;  // a piece that is a token is not merged; BOS is added unless told otherwise
};

constexpr PreTokenizerRow kPreTokenizers[] = {
    {"gpt-2", PreTokenizerRow::gpt2},
    {"smollm", PreTokenizerRow::digits_gpt2},
    {"starcoder", PreTokenizerRow::digits_gpt2},
    {"refact", PreTokenizerRow::digits_gpt2},
    {"command-r", PreTokenizerRow::digits_gpt2},
    {"llama-bpe", PreTokenizerRow::pattern, kLlama3, true},
    {"llama3", PreTokenizerRow::pattern, kLlama3, true},
    {"llama-v3", PreTokenizerRow::pattern, kLlama3, true},
    {"qwen2", PreTokenizerRow::pattern, kQwen2},
    {"deepseek-r1-qwen", PreTokenizerRow::pattern, kQwen2},
};

const PreTokenizerRow& pre_tokenizer_of(const Metadata& meta) {
  constexpr const char* key = "tokenizer.ggml.pre";
  const std::string name = meta.text(key, "");
  std::string known;
  for (const PreTokenizerRow& row : kPreTokenizers) {
    if (row.name == name) return row;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", row.name);
  }
  meta.refuse(key, "the file does not say in a way that Octet knows how text is cut into words",
              name.empty() ? "no such key" : name, known,
              "convert the model again with a current llama.cpp, or use its safetensors");
}

OrderedJson byte_level(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer_json(const PreTokenizerRow& row) {
  if (row.kind == PreTokenizerRow::gpt2) return byte_level(true);
  OrderedJson first = {{"type", "Digits"}, {"individual_digits", true}};
  if (row.kind == PreTokenizerRow::pattern) {
    first = {{"type", "Split"},
             {"pattern", {{"Regex", row.regex}}},
             {"behavior", "Isolated"},
             {"invert", false}};
  }
  return {{"type", "Sequence"},
          {"pretokenizers", {first, byte_level(row.kind != PreTokenizerRow::pattern)}}};
}

// The tokens and what kind each is.
struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;
};

Vocabulary read_vocabulary(const Metadata& meta) {
  constexpr const char* tokens = "tokenizer.ggml.tokens";
  constexpr const char* types = "tokenizer.ggml.token_type";
  Vocabulary vocabulary{.tokens = meta.strings(tokens)};
  if (std::ssize(vocabulary.tokens) > kMostTokens) {
    meta.refuse(tokens, "the vocabulary is too large",
                fmt::format("{} tokens", vocabulary.tokens.size()),
                fmt::format("at most {}", kMostTokens));
  }
  vocabulary.types =
      meta.has(types) ? meta.integers(types) : std::vector<int64_t>(vocabulary.tokens.size(), 1);
  if (vocabulary.types.size() != vocabulary.tokens.size()) {
    meta.refuse(types, "the tokens and their types do not belong together",
                fmt::format("{} types", vocabulary.types.size()),
                fmt::format("{}, one a token", vocabulary.tokens.size()));
  }
  const auto bad = std::ranges::find_if(
      vocabulary.types, [](int64_t type) { return type < kNormal || type > kByte; });
  if (bad != vocabulary.types.end()) {
    meta.refuse(types, "a kind of token that the format does not have",
                fmt::format("{} of token {}", *bad, bad - vocabulary.types.begin()),
                fmt::format("{} to {}", int64_t{kNormal}, int64_t{kByte}));
  }
  return vocabulary;
}

std::optional<int64_t> token_id(const Metadata& meta, std::string_view name,
                                const Vocabulary& vocabulary) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  if (!meta.has(key)) return std::nullopt;
  return meta.integer(key, 0, std::ssize(vocabulary.tokens) - 1);
}

OrderedJson added_tokens(const Vocabulary& vocabulary) {
  OrderedJson added = OrderedJson::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const int64_t type = vocabulary.types[id];
    if (type != kControl && type != kUserDefined && type != kUnknown) continue;
    if (vocabulary.tokens[id].empty()) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUserDefined}});
  }
  return added;
}

// BOS and EOS around a text: a template of the one sequence and of a pair.
OrderedJson template_json(const Vocabulary& vocabulary, std::optional<int64_t> bos,
                          std::optional<int64_t> eos) {
  OrderedJson specials = OrderedJson::object();
  const auto special = [&](int64_t id, int type) -> OrderedJson {
    const std::string name(vocabulary.tokens[static_cast<size_t>(id)]);
    specials[name] = {{"id", name}, {"ids", {id}}, {"tokens", {name}}};
    return {{"SpecialToken", {{"id", name}, {"type_id", type}}}};
  };
  const auto sequence = [&](const char* name, int type, OrderedJson& out) {
    if (bos) out.push_back(special(*bos, type));
    out.push_back({{"Sequence", {{"id", name}, {"type_id", type}}}});
    if (eos) out.push_back(special(*eos, type));
  };
  OrderedJson single = OrderedJson::array(), pair = OrderedJson::array();
  sequence("A", 0, single);
  sequence("A", 0, pair);
  sequence("B", 1, pair);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(specials)}};
}

OrderedJson bpe_json(const Vocabulary& vocabulary, OrderedJson merges) {
  OrderedJson vocab = OrderedJson::object();
  // Filled as the sequence that an ordered object is: a look-up for each key would be quadratic.
  auto& entries = vocab.get_ref<OrderedJson::object_t&>();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    // "[PAD151643]" and the like only fill up the embedding.
    if (vocabulary.types[id] == kUnused) continue;
    entries.push_back({std::string(vocabulary.tokens[id]), OrderedJson(id)});
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

void add_byte_level(const Metadata& meta, const Vocabulary& vocabulary, const PreTokenizerRow& pre,
                    OrderedJson& tokenizer) {
  OrderedJson merges = OrderedJson::array();
  for (const std::string_view merge : meta.strings("tokenizer.ggml.merges")) {
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos) {
      meta.refuse("tokenizer.ggml.merges", "not a merge", std::string(merge),
                  "two tokens with a space between");
    }
    merges.push_back({merge.substr(0, space), merge.substr(space + 1)});
  }
  if (merges.empty()) {
    meta.refuse("tokenizer.ggml.merges", "without merges every text is cut into single bytes",
                "an empty list", "the merges of the model's tokenizer");
  }
  tokenizer["pre_tokenizer"] = pre_tokenizer_json(pre);
  tokenizer["decoder"] = byte_level(true);
  tokenizer["model"] = bpe_json(vocabulary, std::move(merges));
  tokenizer["model"]["ignore_merges"] = pre.llama3;
}

// The byte offsets at which characters of a token begin, but the first.
std::vector<size_t> inner_characters(std::string_view token) {
  std::vector<size_t> starts;
  for (size_t i = 1; i < token.size(); ++i) {
    if ((static_cast<unsigned char>(token[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  return starts;
}

// SentencePiece has scores where BPE has merges: of two neighbours that together are a token, those
// with the best score become one. The same as a list: all ways to put a token together, by its
// score (transformers, convert_slow_tokenizer.py, generate_merges).
OrderedJson merges_of_scores(const Metadata& meta, const Vocabulary& vocabulary) {
  constexpr const char* key = "tokenizer.ggml.scores";
  const std::vector<float> scores = meta.numbers(key);
  if (scores.size() != vocabulary.tokens.size()) {
    meta.refuse(key, "the tokens and their scores do not belong together",
                fmt::format("{} scores", scores.size()),
                fmt::format("{}, one a token", vocabulary.tokens.size()));
  }
  const auto bad = std::ranges::find_if(scores, [](float score) { return std::isnan(score); });
  if (bad != scores.end()) {
    meta.refuse(key, "a score that orders nothing",
                fmt::format("NaN of token {}", bad - scores.begin()), "numbers");
  }
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) ids.emplace(vocabulary.tokens[id], id);
  struct Way {
    std::string_view left, right;
    size_t id, left_id, right_id;
    ptrdiff_t left_length, right_length;  // in characters
    float score;
    auto order() const {
      return std::tuple(-score, -left_length, -right_length, id, left_id, right_id);
    }
  };
  std::vector<Way> ways;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const std::string_view token = vocabulary.tokens[id];
    if (vocabulary.types[id] != kNormal || token.size() > kLongestMerged) continue;
    const std::vector<size_t> cuts = inner_characters(token);
    for (size_t i = 0; i < cuts.size(); ++i) {
      const auto left = ids.find(token.substr(0, cuts[i])), right = ids.find(token.substr(cuts[i]));
      if (left == ids.end() || right == ids.end()) continue;
      const auto length = static_cast<ptrdiff_t>(i) + 1;
      if (ways.size() == kMostMerges) {
        meta.refuse(key, "the tokens are put together of each other in too many ways",
                    fmt::format("over {} by token {}", kMostMerges, id),
                    fmt::format("at most {}", kMostMerges));
      }
      ways.push_back({left->first, right->first, id, left->second, right->second, length,
                      std::ssize(cuts) + 1 - length, scores[id]});
    }
  }
  std::ranges::sort(ways, {}, &Way::order);
  OrderedJson merges = OrderedJson::array();
  for (const Way& way : ways) merges.push_back({way.left, way.right});
  return merges;
}

// Llama 2's kind: blanks are "▁", unknown characters are spelled in bytes.
void add_sentence_piece(const Metadata& meta, const Vocabulary& vocabulary,
                        OrderedJson& tokenizer) {
  const bool prefix = meta.flag("tokenizer.ggml.add_space_prefix", true);
  const OrderedJson replace = {
      {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  OrderedJson normalizers = OrderedJson::array();
  if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", "\u2581"}});
  normalizers.push_back(replace);
  tokenizer["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(normalizers)}};
  OrderedJson decoders = {
      {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}}};
  if (prefix) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  tokenizer["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(decoders)}};
  OrderedJson model = bpe_json(vocabulary, merges_of_scores(meta, vocabulary));
  const auto unknown = std::ranges::find(vocabulary.types, int64_t{kUnknown});
  if (unknown != vocabulary.types.end()) {
    model["unk_token"] = vocabulary.tokens[static_cast<size_t>(unknown - vocabulary.types.begin())];
  }
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  tokenizer["model"] = std::move(model);
}

OrderedJson config_json_of(const Metadata& meta, const Vocabulary& vocabulary, bool add_bos,
                           bool add_eos) {
  OrderedJson config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                        {"clean_up_tokenization_spaces", false},
                        {"add_bos_token", add_bos},
                        {"add_eos_token", add_eos}};
  for (const auto& [name, key] : {std::pair{"bos", "bos_token"},
                                  {"eos", "eos_token"},
                                  {"unknown", "unk_token"},
                                  {"padding", "pad_token"}}) {
    if (const auto id = token_id(meta, name, vocabulary)) {
      config[key] = vocabulary.tokens[static_cast<size_t>(*id)];
    }
  }
  constexpr const char* chat = "tokenizer.chat_template";
  if (meta.has(chat)) config["chat_template"] = meta.text(chat);
  return config;
}

}  // namespace

std::map<std::string, std::string> tokenizer_files(const Metadata& meta) {
  constexpr const char* model_key = "tokenizer.ggml.model";
  if (!meta.has(model_key)) return {};
  const std::string model = meta.text(model_key);
  if (model != "gpt2" && model != "llama") {
    meta.refuse(model_key, "a kind of tokenizer that Octet does not read from GGUF", model,
                "gpt2 (byte-level BPE), llama (SentencePiece)",
                "use the model's safetensors and its tokenizer.json");
  }
  const PreTokenizerRow* pre = model == "gpt2" ? &pre_tokenizer_of(meta) : nullptr;
  const Vocabulary vocabulary = read_vocabulary(meta);
  const auto bos = token_id(meta, "bos", vocabulary), eos = token_id(meta, "eos", vocabulary);
  const bool bos_by_default = !pre || pre->llama3;  // llama.cpp's rule where the file is silent
  const bool add_bos = meta.flag("tokenizer.ggml.add_bos_token", bos_by_default) && bos;
  const bool add_eos = meta.flag("tokenizer.ggml.add_eos_token", false) && eos;
  OrderedJson tokenizer = {{"version", "1.0"},          {"truncation", nullptr},
                           {"padding", nullptr},        {"added_tokens", added_tokens(vocabulary)},
                           {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
                           {"post_processor", nullptr}, {"decoder", nullptr},
                           {"model", nullptr}};
  if (pre) {
    add_byte_level(meta, vocabulary, *pre, tokenizer);
  } else {
    add_sentence_piece(meta, vocabulary, tokenizer);
  }
  if (add_bos || add_eos) {
    tokenizer["post_processor"] =
        template_json(vocabulary, add_bos ? bos : std::nullopt, add_eos ? eos : std::nullopt);
  }
  return {{"tokenizer.json", dump_json(tokenizer) + "\n"},
          {"tokenizer_config.json",
           dump_json(config_json_of(meta, vocabulary, add_bos, add_eos), 2) + "\n"}};
}

}  // namespace octet::model::gguf
