#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "text/byte_alphabet.h"
#include "text/json_node.h"
#include "text/pipeline_json.h"
#include "text/utf8.h"

namespace octet::text {
namespace {

namespace dom = simdjson::dom;

// No vocabulary comes near; a hostile id must not size our tables.
constexpr int64_t kMaxTokens = int64_t{1} << 22;

constexpr const char* kAcceptedModels =
    "BPE tokenizers, byte-level (GPT-2, Llama-3, DeepSeek, Qwen, SmolLM2) or SentencePiece-style "
    "(Llama-2, Mistral)";

std::string type_of(const JsonNode& node) {
  return std::string(node.at("type").string());
}

// Reads the two files into one TokenizerSpec; the methods are in the order of their calls.
class Reader {
 public:
  explicit Reader(const JsonNode& root) : root_(root) {}

  void read_tokenizer() {
    byte_level_ = read_pipeline(root_, spec_);
    spec_.bpe.characters = !byte_level_;
    read_vocabulary();
    read_merges();
    if (byte_level_) {
      read_byte_symbols();
    } else {
      read_byte_pieces();
    }
    if (const auto added = root_.find("added_tokens")) {
      size_t i = 0;
      const dom::array list = added->array();
      Listed listed;
      for (const dom::element entry : list) {
        const JsonNode token = added->item(entry, i++);
        const JsonNode id = token.at("id");
        refuse_twice(token, id, listed);
        add_token(token, id, id.integer());
      }
    }
    if (const auto post = root_.find("post_processor")) read_post_processor(*post);
  }

  void read_config(const JsonNode& config);

  // Once all added tokens are known.
  void check_merges() const;

  TokenizerSpec take() { return std::move(spec_); }

 private:
  void read_vocabulary();
  void read_merges();
  void read_byte_symbols();
  void read_byte_pieces();
  void read_unknown(const JsonNode& node);
  struct Listed {
    std::unordered_set<std::string_view> contents;
    std::unordered_set<int64_t> ids;
  };
  static void refuse_twice(const JsonNode& token, const JsonNode& id, Listed& listed);
  void add_token(const JsonNode& token, const JsonNode& id_node, int64_t id);
  void read_post_processor(const JsonNode& node);
  void read_template(const JsonNode& node);

  int64_t checked_id(const JsonNode& node, int64_t id) const {
    if (id < 0 || id >= kMaxTokens) node.fail("token id is out of range", "0 to 4194303");
    return id;
  }
  // The id of a token by its content, added tokens first, or -1.
  int32_t id_of(std::string_view content) const {
    const auto it = added_index_.find(std::string(content));
    return it != added_index_.end() ? spec_.added[it->second].id : written_.find(content);
  }
  void reserve_id(size_t id) {
    if (spec_.token_bytes.size() > id) return;
    spec_.token_bytes.resize(id + 1);
    if (!byte_level_) spec_.pieces.resize(id + 1);
    spec_.in_model.resize(id + 1);
    used_.resize(id + 1);
  }

  const JsonNode& root_;
  TokenizerSpec spec_;
  StringIdMap written_{0};  // the vocabulary as it is written: "Ġthe"; views into the document
  std::vector<bool> used_;  // by id
  std::unordered_map<std::string, size_t> added_index_;  // content to place in spec_.added
  bool byte_level_ = true;
};

void Reader::read_vocabulary() {
  const JsonNode model = root_.at("model");
  // Files of before 2020 do not name the type.
  if (const auto type = model.find("type"); type && type->string() != "BPE") {
    type->fail("unsupported tokenizer model", std::string("BPE: ") + kAcceptedModels);
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const auto node = model.find(affix);
    if (node && !node->string().empty()) node->fail("unsupported BPE option", "null or \"\"");
  }
  if (const auto dropout = model.find("dropout")) {
    double rate = 0;
    if (dropout->value().get(rate) || rate != 0) {
      dropout->fail("unsupported BPE option: merges would be random", "null or 0");
    }
  }
  spec_.bpe.fuse_unknown = model.flag("fuse_unk", false);
  spec_.bpe.ignore_merges = model.flag("ignore_merges", false);

  const JsonNode vocab = model.at("vocab");
  const dom::object entries = vocab.object();
  if (entries.size() == 0) vocab.fail("the vocabulary is empty", "the tokens with their ids");
  written_ = StringIdMap(entries.size());
  for (const dom::key_value_pair entry : entries) {
    int64_t id = 0;
    if (entry.value.get(id) || id < 0 || id >= kMaxTokens) {
      JsonNode(entry.value, vocab.place() + "[\"" + std::string(entry.key) + "\"]")
          .fail("token id is out of range", "an integer from 0 to 4194303");
    }
    reserve_id(static_cast<size_t>(id));
    if (used_[id] || !written_.insert(entry.key, static_cast<int32_t>(id))) {
      JsonNode(entry.value, vocab.place() + "[\"" + std::string(entry.key) + "\"]")
          .fail("token or id occurs twice in the vocabulary", "distinct tokens and ids");
    }
    used_[id] = true;
    if (!byte_level_) {
      const auto byte = spec_.replace_each_byte ? byte_of_piece(entry.key) : std::nullopt;
      spec_.pieces[id] = entry.key;
      spec_.token_bytes[id] =
          byte ? std::string(1, static_cast<char>(*byte)) : piece_bytes(entry.key);
      spec_.in_model[id] = true;
      continue;
    }
    // A token with other characters than the alphabet's, such as "<｜end▁of▁sentence｜>", can only
    // be an added token: it decodes as it is written, and no text merges into it.
    if (auto bytes = bytes_of_alphabet(entry.key)) {
      spec_.token_bytes[id] = std::move(*bytes);
      spec_.in_model[id] = true;
    } else {
      spec_.token_bytes[id] = entry.key;
    }
  }
}

void Reader::read_merges() {
  const JsonNode merges = root_.at("model").at("merges");
  const dom::array list = merges.array();
  spec_.bpe.merges.reserve(list.size());
  std::string joined, first_doubled;
  size_t rank = 0, doubled = 0;
  std::unordered_set<uint64_t> seen;  // pairs of ids
  seen.reserve(list.size());
  for (const dom::element entry : list) {
    std::string_view left, right;
    if (entry.get(left) == simdjson::SUCCESS) {  // "a b"
      const size_t space = left.find(' ');
      if (space == std::string_view::npos) {
        merges.item(entry, rank).fail("not a merge", "two tokens with a space between");
      }
      right = left.substr(space + 1);
      left = left.substr(0, space);
    } else {  // ["a", "b"]
      dom::array pair;
      if (entry.get(pair) || pair.size() != 2 || pair.at(0).get(left) || pair.at(1).get(right)) {
        merges.item(entry, rank).fail("not a merge", "\"a b\" or [\"a\", \"b\"]");
      }
    }
    joined.assign(left).append(right);
    const Merge merge{written_.find(left), written_.find(right), written_.find(joined),
                      static_cast<int32_t>(rank)};
    if (merge.left < 0 || merge.right < 0 || merge.result < 0) {
      const std::string_view missing =
          merge.left < 0 ? left : (merge.right < 0 ? right : std::string_view(joined));
      merges.item(entry, rank)
          .fail("merge names a token that the vocabulary lacks: \"" + std::string(missing) + "\"",
                "two tokens that are in model.vocab, as is what they give together");
    }
    if (!seen.insert(uint64_t{static_cast<uint32_t>(merge.left)} << 32 |
                     static_cast<uint32_t>(merge.right))
             .second &&
        doubled++ == 0) {
      first_doubled = merges.item(entry, rank).place();
    }
    spec_.bpe.merges.push_back(merge);
    ++rank;
  }
  if (doubled > 0) {
    log::warning(
        "{}: {} merges are listed twice, this one first; the later place holds, as in "
        "Hugging Face's tokenizers",
        first_doubled, doubled);
  }
}

void Reader::read_byte_symbols() {
  const JsonNode model = root_.at("model");
  const bool byte_fallback = model.flag("byte_fallback", false);
  const auto unknown_node = model.find("unk_token");
  for (int b = 0; b < 256; ++b) {
    ByteSymbols& symbols = spec_.bpe.bytes[b];
    std::string letter;
    append_utf8(kByteAlphabet[b], letter);
    if (const int32_t id = written_.find(letter); id >= 0) {
      symbols = {.ids = {id, -1}, .count = 1};
      continue;
    }
    if (byte_fallback) {
      // The reference falls back on the bytes of the letter, not on the byte that it stands for.
      ByteSymbols spelled{.spelled = true};
      for (const char c : letter) {
        char name[8];
        std::snprintf(name, sizeof name, "<0x%02X>",
                      static_cast<unsigned>(static_cast<uint8_t>(c)));
        const int32_t id = written_.find(name);
        if (id >= 0) spelled.ids[spelled.count++] = id;
      }
      if (spelled.count == letter.size()) {
        symbols = spelled;
        continue;
      }
    }
    if (unknown_node) read_unknown(*unknown_node);
  }
}

// "<0x00>" to "<0xFF>" spell a character that the vocabulary lacks, with byte_fallback.
void Reader::read_byte_pieces() {
  const JsonNode model = root_.at("model");
  if (model.flag("byte_fallback", false)) {
    for (int b = 0; b < 256; ++b) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", static_cast<unsigned>(b));
      const int32_t id = written_.find(name);
      if (id >= 0) spec_.bpe.bytes[b] = {.ids = {id, -1}, .count = 1, .spelled = true};
    }
  }
  if (const auto unknown = model.find("unk_token")) read_unknown(*unknown);
}

void Reader::read_unknown(const JsonNode& node) {
  spec_.bpe.unknown = written_.find(node.string());
  if (spec_.bpe.unknown < 0) node.fail("unknown token is not in the vocabulary", "a token of it");
}

// tokenizer.json lists each added token once. (Its config may name them again, to change flags.)
void Reader::refuse_twice(const JsonNode& token, const JsonNode& id, Listed& listed) {
  const JsonNode content = token.at("content");
  if (!listed.contents.insert(content.string()).second) {
    content.fail("an added token is listed twice", "each content once");
  }
  if (!listed.ids.insert(id.integer()).second) {
    id.fail("two added tokens have one id", "an id of its own");
  }
}

void Reader::add_token(const JsonNode& token, const JsonNode& id_node, int64_t id) {
  checked_id(id_node, id);
  AddedToken added;
  added.content = token.at("content").string();
  if (added.content.empty()) {
    log::warning("{}: the added token {} is empty, and stands for nothing", token.place(), id);
    return;  // as the reference does
  }
  added.special = token.flag("special", false);
  added.normalized = token.flag("normalized", !added.special);
  added.lstrip = token.flag("lstrip", false);
  added.rstrip = token.flag("rstrip", false);
  added.single_word = token.flag("single_word", false);

  if (const auto it = added_index_.find(added.content); it != added_index_.end()) {
    added.id = spec_.added[it->second].id;
    spec_.added[it->second] = std::move(added);
    return;
  }
  // A string that the vocabulary has keeps the vocabulary's id, whatever this entry says.
  const int32_t known = written_.find(added.content);
  added.id = known >= 0 ? known : static_cast<int32_t>(id);
  if (known < 0) {
    reserve_id(static_cast<size_t>(id));
    if (used_[id]) id_node.fail("the id belongs to another token", "an id of its own");
    used_[id] = true;
    spec_.token_bytes[id] = byte_level_ ? added.content : piece_bytes(added.content);
  }
  added_index_.emplace(added.content, spec_.added.size());
  spec_.added.push_back(std::move(added));
}

void Reader::read_post_processor(const JsonNode& node) {
  const std::string type = type_of(node);
  if (type == "Sequence") {
    const JsonNode list = node.at("processors");
    const dom::array items = list.array();
    size_t i = 0;
    for (const dom::element item : items) read_post_processor(list.item(item, i++));
  } else if (type == "TemplateProcessing") {
    read_template(node);
  } else if (type == "ByteLevel") {  // which moves offsets only
    spec_.trim_offsets = node.flag("trim_offsets", true);
    spec_.trim_keeps_prefix = node.flag("add_prefix_space", true);
  } else {
    node.at("type").fail("unsupported post-processor", "TemplateProcessing, ByteLevel, Sequence");
  }
}

void Reader::read_template(const JsonNode& node) {
  const JsonNode single = node.at("single");
  const dom::array pieces = single.array();
  std::vector<int32_t> before, after;
  int texts = 0;
  size_t i = 0;
  for (const dom::element element : pieces) {
    const JsonNode piece = single.item(element, i++);
    if (piece.find("Sequence")) {
      ++texts;
      continue;
    }
    const std::string_view name = piece.at("SpecialToken").at("id").string();
    const JsonNode ids = node.at("special_tokens").at(name).at("ids");
    const dom::array list = ids.array();
    size_t j = 0;
    for (const dom::element element_id : list) {
      const JsonNode id_node = ids.item(element_id, j++);
      const int64_t id = id_node.integer();
      if (id < 0 || id >= std::ssize(used_) || !used_[id]) {
        id_node.fail("the template names an id that no token has", "the id of a token");
      }
      (texts == 0 ? before : after).push_back(static_cast<int32_t>(id));
    }
  }
  if (texts != 1) single.fail("the template must have the text once", "one {\"Sequence\": ...}");
  // A template behind another one goes around it.
  spec_.prefix.insert(spec_.prefix.begin(), before.begin(), before.end());
  spec_.suffix.insert(spec_.suffix.end(), after.begin(), after.end());
}

void Reader::read_config(const JsonNode& config) {
  if (const auto decoder = config.find("added_tokens_decoder")) {
    const dom::object entries = decoder->object();
    for (const dom::key_value_pair entry : entries) {
      const JsonNode token(entry.value, decoder->place() + "[\"" + std::string(entry.key) + "\"]");
      int64_t id = 0;
      for (const char c : entry.key) {
        if (c < '0' || c > '9' || id >= kMaxTokens) {
          token.fail("the key is not a token id", "\"0\" to \"4194303\"");
        }
        id = 10 * id + (c - '0');
      }
      add_token(token, token, id);
    }
  }

  // A name is a string or a serialized AddedToken; one that no token has counts as none.
  const auto named = [&](const char* key) -> std::optional<int32_t> {
    auto node = config.find(key);
    if (node && node->value().is_object()) node = node->at("content");
    if (!node) return std::nullopt;
    const int32_t id = id_of(node->string());
    if (id < 0) return std::nullopt;
    // What the config names is special, even where tokenizer.json does not say so.
    for (AddedToken& token : spec_.added) {
      if (token.id == id) token.special = true;
    }
    return id;
  };
  const auto bos = named("bos_token");
  const auto eos = named("eos_token");
  named("pad_token");
  named("unk_token");
  if (bos) spec_.bos = bos;
  if (eos) spec_.eos = eos;

  // Where the config speaks, it overrules the template: one BOS or none, never two.
  if (const auto add_bos = config.find("add_bos_token")) {
    std::vector<int32_t>& prefix = spec_.prefix;
    if (add_bos->boolean()) {
      if (!bos) add_bos->fail("add_bos_token is set, but bos_token names no token", "false");
      if (std::ranges::find(prefix, *bos) == prefix.end()) prefix.insert(prefix.begin(), *bos);
    } else if (bos) {
      std::erase(prefix, *bos);
    }
  }
  if (const auto add_eos = config.find("add_eos_token")) {
    std::vector<int32_t>& suffix = spec_.suffix;
    if (add_eos->boolean()) {
      if (!eos) add_eos->fail("add_eos_token is set, but eos_token names no token", "false");
      if (std::ranges::find(suffix, *eos) == suffix.end()) suffix.push_back(*eos);
    } else if (eos) {
      std::erase(suffix, *eos);
    }
  }
}

// A token that is neither a symbol nor an added token can only come of a merge. In each vocabulary
// that a model was trained with all of them do: where some do not, merges are lost, and text would
// be cut finer than what the model knows.
void Reader::check_merges() const {
  std::vector<bool> reached(used_.size());
  for (const Merge& merge : spec_.bpe.merges) reached[merge.result] = true;
  for (const ByteSymbols& symbols : spec_.bpe.bytes) {
    for (uint8_t i = 0; i < symbols.count; ++i) reached[symbols.ids[i]] = true;
  }
  for (const AddedToken& token : spec_.added) reached[token.id] = true;
  const auto unknown = root_.at("model").find("unk_token");
  const int32_t unknown_id = unknown ? written_.find(unknown->string()) : -1;
  if (unknown_id >= 0) reached[unknown_id] = true;
  int64_t lost = 0;
  std::string first;
  for (size_t id = 0; id < used_.size(); ++id) {
    const std::string_view written = byte_level_ ? spec_.token_bytes[id] : spec_.pieces[id];
    const size_t symbol = byte_level_ ? 1 : utf8_step(written).bytes;
    if (!spec_.in_model[id] || reached[id] || written.size() <= symbol) continue;
    if (lost++ == 0) first = written;
  }
  if (lost == 0) return;
  const JsonNode merges = root_.at("model").at("merges");
  const std::string what = fmt::format(
      "{} tokens of the vocabulary, of which \"{}\" is the first, come of no merge", lost, first);
  if (spec_.bpe.merges.empty()) {
    merges.fail(what + ": every text would be cut into single bytes or characters",
                "the merges of the model's tokenizer",
                "download tokenizer.json again, or convert the model again");
  }
  log::warning("{}: {}, and none is an added token; no text is cut into them. Are merges lost?",
               merges.place(), what);
}

}  // namespace

TokenizerSpec parse_tokenizer(std::string_view tokenizer, const std::string& tokenizer_name,
                              std::string_view config, const std::string& config_name) {
  dom::parser parser;
  const JsonNode root = JsonNode::parse(parser, tokenizer, tokenizer_name);
  Reader reader(root);
  reader.read_tokenizer();
  if (!config.empty()) {
    dom::parser config_parser;
    const JsonNode config_root = JsonNode::parse(config_parser, config, config_name);
    reader.read_config(config_root);
  }
  reader.check_merges();
  TokenizerSpec spec = reader.take();
  if (!spec.bos && !spec.prefix.empty()) spec.bos = spec.prefix.front();
  return spec;
}

}  // namespace octet::text
