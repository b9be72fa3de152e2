// Structured output: the masks against an oracle that knows nothing of the engine.
#include "text/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/json.h"
#include "text/schema_keywords.h"
#include "unit/text/small_tokenizer.h"

namespace octet::text {
namespace {

using Kind = GrammarSource::Kind;
using testing::HasSubstr;

constexpr int32_t kEos = 262, kBos = 261;
constexpr int64_t kVocab = 270;  // more than the tokenizer has, as padded embeddings do

class GrammarTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammar_engine()) GTEST_SKIP() << "built without the engine of structured output";
  }

  const Tokenizer tokenizer = small_tokenizer();
  const std::vector<int32_t> ends{kEos};

  std::string bytes(int32_t token) const { return std::string(tokenizer.token_bytes(token)); }

  static std::vector<bool> allowed(GrammarState& state) {
    std::vector<int32_t> words((kVocab + 31) / 32, -1);
    const bool restricts = state.fill(words);
    std::vector<bool> tokens(kVocab, true);
    for (size_t t = 0; restricts && t < kVocab; ++t) {
      tokens[t] = (static_cast<uint32_t>(words[t / 32]) >> (t % 32) & 1) != 0;
    }
    return tokens;
  }

  // A token drawn from the allowed ones, or kEos where nothing else is.
  static int32_t draw(GrammarState& state, std::mt19937& random) {
    const std::vector<bool> may = allowed(state);
    std::vector<int32_t> tokens;
    for (int32_t t = 0; t < kVocab; ++t) {
      if (may[static_cast<size_t>(t)]) tokens.push_back(t);
    }
    EXPECT_FALSE(tokens.empty());
    if (tokens.empty()) return kEos;
    return tokens[std::uniform_int_distribution<size_t>(0, tokens.size() - 1)(random)];
  }

  // Whether `text` may be all of the output. The tokens of single bytes have their values as ids.
  static bool accepts(const std::shared_ptr<const CompiledGrammar>& grammar,
                      const std::string& text) {
    GrammarState state(grammar);
    for (const char c : text) {
      if (!state.accept(static_cast<unsigned char>(c))) return false;
    }
    return allowed(state)[kEos];
  }

  // A text that the grammar allows, ended by an end token, as a client gets it: bytes that are no
  // character, such as those of surrogates, which the engine takes for one, are U+FFFD.
  std::string walk(const std::shared_ptr<const CompiledGrammar>& grammar, std::mt19937& random,
                   int most = 4000) {
    GrammarState state(grammar);
    std::vector<int32_t> ids;
    for (int i = 0; i < most; ++i) {
      const int32_t token = draw(state, random);
      EXPECT_TRUE(state.accept(token));
      if (token == kEos) return tokenizer.decode(ids, false);
      ids.push_back(token);
    }
    const std::string text = tokenizer.decode(ids, false);
    ADD_FAILURE() << "no end after " << most << " tokens: " << text;
    return text;
  }
};

// What PCRE2 says of a text: could it become a match, is it one?
class RegexOracle {
 public:
  explicit RegexOracle(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE at = 0;
    const std::string whole = "^(?:" + pattern + ")\\z";
    code_ = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), 0, &error, &at,
                          nullptr);
    EXPECT_NE(code_, nullptr) << pattern;
    match_ = pcre2_match_data_create_from_pattern(code_, nullptr);
  }
  ~RegexOracle() {
    pcre2_match_data_free(match_);
    pcre2_code_free(code_);
  }
  RegexOracle(const RegexOracle&) = delete;
  RegexOracle& operator=(const RegexOracle&) = delete;

  bool may_become(const std::string& text) const {
    const int found = run(text, PCRE2_PARTIAL_HARD);
    return found >= 0 || found == PCRE2_ERROR_PARTIAL;
  }
  bool is(const std::string& text) const { return run(text, 0) >= 0; }

 private:
  int run(const std::string& text, uint32_t options) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                       PCRE2_ANCHORED | options, match_, nullptr);
  }
  pcre2_code* code_ = nullptr;
  pcre2_match_data* match_ = nullptr;
};

TEST_F(GrammarTest, MasksOfExpressionsAreThoseOfPcre2) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  std::mt19937 random(1);
  for (const char* pattern :
       {"hello", "(hello|help|shell) ?(world)?", "[0-9]{3}-[0-9]{4}", "(he|hell|o)*", "a+b*c?",
        "(ab|a)(bc|c)", "[a-f]{2,5}x", "\\d+(\\.\\d+)?", "( hello){0,3}!", "l{0,7}"}) {
    const RegexOracle oracle(pattern);
    const auto grammar = compiler.compile({.kind = Kind::regex, .text = pattern}, "here");
    for (int repeat = 0; repeat < 3; ++repeat) {
      GrammarState state(grammar);
      std::string text;
      for (int step = 0; step < 20; ++step) {
        const std::vector<bool> may = allowed(state);
        bool more = false;
        for (int32_t t = 0; t < kVocab; ++t) {
          const bool special = bytes(t).empty() || t == kBos;
          const bool expected =
              t == kEos ? oracle.is(text) : !special && oracle.may_become(text + bytes(t));
          EXPECT_EQ(may[static_cast<size_t>(t)], expected)
              << pattern << " after '" << text << "', token " << t << " '" << bytes(t) << "'";
          more |= expected && t != kEos;
        }
        EXPECT_EQ(state.finished(), step > 0 && !more) << pattern << " after '" << text << "'";
        const int32_t token = draw(state, random);
        ASSERT_TRUE(state.accept(token));
        if (token == kEos) break;
        text += bytes(token);
      }
    }
  }
}

// Whatever a pattern may match, the output stays JSON.
TEST_F(GrammarTest, PatternsAndLengthsStayInsideTheirStrings) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  std::mt19937 random(6);
  for (const char* of_string :
       {R"("pattern":"^.{1,9}$")", R"("pattern":"^\\S+$")", R"("pattern":"[^x]{3}")",
        R"("pattern":"(a|\\W){2,4}")", R"("minLength":3,"maxLength":9)", R"("minLength":20)",
        R"("format":"date")", R"("format":"email")", R"("pattern":"\\D\\d.")",
        R"("pattern":"^a.{0,5}?b$")"}) {
    const std::string schema = std::string(R"({"type":"array","items":{"type":"string",)") +
                               of_string + R"(},"minItems":2,"maxItems":2})";
    const auto grammar = compiler.compile({.kind = Kind::json_schema, .text = schema}, "here");
    for (int i = 0; i < 5; ++i) {
      const std::string text = walk(grammar, random, 20000);
      Json output;
      ASSERT_NO_THROW(output = parse_json(text, "output")) << of_string << text;
      EXPECT_EQ(output.size(), 2U) << of_string << text;
      // A lazy repeat means the same strings as a greedy one.
      if (std::string_view(of_string).find('?') == std::string_view::npos) continue;
      for (const Json& one : output) {
        const auto string = one.get<std::string>();
        EXPECT_TRUE(string.starts_with('a') && string.ends_with('b')) << string;
      }
    }
  }
}

// The mask and accept() are two paths through the engine.
TEST_F(GrammarTest, WhatTheMaskAllowsIsWhatIsAccepted) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  const auto grammar = compiler.compile(
      {.kind = Kind::json_schema,
       .text = R"({"type":"object","properties":{"hello":{"enum":["hell","he",1,null]},
                   "n":{"type":"integer","minimum":-5,"maximum":120}},"required":["hello"]})"},
      "here");
  std::mt19937 random(2);
  std::vector<int32_t> path;
  for (int step = 0; step < 60; ++step) {
    const auto at_path = [&] {
      GrammarState state(grammar);
      for (const int32_t token : path) EXPECT_TRUE(state.accept(token));
      return state;
    };
    GrammarState state = at_path();
    const std::vector<bool> may = allowed(state);
    for (int32_t t = 0; t < kVocab; ++t) {
      EXPECT_EQ(at_path().accept(t), may[static_cast<size_t>(t)]) << step << ", token " << t;
    }
    path.push_back(draw(state, random));
    if (path.back() == kEos) break;
  }
}

TEST_F(GrammarTest, OutputsOfASchemaAreValid) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  const auto grammar =
      compiler.compile({.kind = Kind::json_schema, .text = R"({"type":"object","properties":{
           "zebra":{"type":"string","maxLength":6},
           "apple":{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3},
           "kind":{"enum":["a","b"]},"flag":{"type":"boolean"}},
         "required":["zebra","apple","kind"]})"},
                       "here");
  std::mt19937 random(3);
  for (int i = 0; i < 20; ++i) {
    const auto json = parse_json<OrderedJson>(walk(grammar, random), "output");
    ASSERT_TRUE(json.is_object()) << json;
    EXPECT_TRUE(json["zebra"].is_string() && json["apple"].is_array()) << json;
    EXPECT_THAT(json["apple"].size(), testing::AllOf(testing::Ge(1U), testing::Le(3U)));
    EXPECT_TRUE(json["kind"] == "a" || json["kind"] == "b") << json;
    EXPECT_LE(json.size(), 4U);
    EXPECT_EQ(json.begin().key(), "zebra") << "the schema's order";
  }
}

TEST_F(GrammarTest, ObjectsChoicesGrammarsAndWhatIsAroundThem) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  std::mt19937 random(4);
  const auto walk_of = [&](const GrammarSource& source) {
    return walk(compiler.compile(source, "here"), random, 20000);
  };
  const std::vector<std::string> choices = {"yes", "no", "a \"b\"\n\\c\td", "\u00e4\u4e16"};
  for (int i = 0; i < 8; ++i) {
    EXPECT_THAT(choices, testing::Contains(walk_of(
                             {.kind = Kind::choice, .text = dump_json(OrderedJson(choices))})));
  }
  EXPECT_THAT(walk_of({.kind = Kind::ebnf, .text = "root ::= \"(\" root \")\" | \"x\""}),
              testing::MatchesRegex("[(]*x[)]*"));
  const std::string around = walk_of({.kind = Kind::json_schema,
                                      .text = R"({"const":1})",
                                      .before = "<tool>\n",
                                      .after = "\n</tool>"});
  EXPECT_EQ(around, "<tool>\n1\n</tool>");
}

TEST_F(GrammarTest, WhatIsWrongOrNotSupportedIsRefusedByName) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  const auto refusal = [&](Kind kind, const std::string& text) -> std::string {
    try {
      compiler.compile({.kind = kind, .text = text}, "the field");
    } catch (const Error& error) {
      EXPECT_EQ(error.parts().where.find("the field"), 0U) << error.what();
      return error.what();
    }
    return "accepted";
  };
  const std::pair<const char*, const char*> schemas[] = {
      {R"({"type":"object","properties":{"a":{"not":{"type":"string"}}}})", "not"},
      {R"({"type":"string","if":{}})", "if"},
      {R"({"type":"array","items":{},"uniqueItems":true})", "uniqueItems"},
      {R"({"type":"number","multipleOf":0.1})", "multipleOf"},
      {R"({"type":"quaternion"})", "quaternion"},
      {R"({"$ref":"https://example.org/x.json"})", "leads to no schema"},
      {R"({"$ref":"#anchor"})", "leads to no schema"},
      {R"({"$ref":"#/a~2b","a~2b":{}})", "leads to no schema"},
      {R"({"$ref":"#/a%2","a%2":{}})", "leads to no schema"},
      {R"({"$ref":"#/anyOf/01","anyOf":[{},{}]})", "leads to no schema"},
      {R"({"items":{"$ref":"#/x/y"},"x":{"y":{"not":{}}}})", "$.$defs.y: not"},
      {R"({"$ref":"#/$defs/missing"})", "missing"},
      {R"({"type":"object","properties":{"a":{}},"anyOf":[{"required":["a"]}]})", "beside anyOf"},
      {R"({"type":"object","required":["a"]})", "required"},
      {R"({"type":"string","pattern":"\u00e4+"})", "ASCII"},
      {R"({"anyOf":[]})", "empty anyOf"},
      {R"({"type":"object","properties":{"a":{"type":[]}},"required":["a"]})", "empty type"},
      {R"({"type":"integer","const":"x"})", "const"},
      {R"({"type":"string","enum":["a",1]})", "enum"},
      {R"({"type":"integer","$ref":"#/$defs/a","$defs":{"a":{"type":"null"}}})", "beside $ref"},
      {R"({"type":"object","anyOf":[{"type":"string"}]})", "beside anyOf"},
      {R"({"type":"string","pattern":"a{4294967298}"})", "65535"},
      {R"({"type":"integer","minimum":5,"maximum":1})", ""},
      {R"({"type":)", ""}};
  for (const auto& [schema, named] : schemas) {
    const std::string message = refusal(Kind::json_schema, schema);
    EXPECT_NE(message, "accepted") << schema;
    EXPECT_THAT(message, HasSubstr(named)) << schema;
  }
  for (const char* regex : {"a{4294967298}", "a{1,99999999999999999999999}", "\\u{110000}",
                            "\\ud800", "[\\uDC00-\\uDFFF]", "\\U0011FFFF"}) {
    EXPECT_THAT(refusal(Kind::regex, regex), HasSubstr("cannot hold")) << regex;
  }
  for (const char* regex : {"(", "[", "a{3,1}", "(?=a)b", "\\bword", "(a)\\1", "\\p{L}", "a^b"}) {
    EXPECT_NE(refusal(Kind::regex, regex), "accepted") << regex;
  }
  for (const char* grammar : {"", "root ::= ", "root ::= missing", "start ::= \"a\"", "::::"}) {
    EXPECT_NE(refusal(Kind::ebnf, grammar), "accepted") << grammar;
  }
  EXPECT_THAT(refusal(Kind::regex, std::string(300 << 10, 'a')), HasSubstr("too long"));
  EXPECT_THAT(refusal(Kind::regex, std::string("a\0b", 3)), HasSubstr("NUL"));
}

// The same limits as the server's but for time.
TEST_F(GrammarTest, NothingHostileEndsTheProcessOrLastsLong) {
  GrammarLimits limits;
  limits.sandbox.cpu_seconds = 1;
  GrammarCompiler compiler(tokenizer, kVocab, ends, limits);
  std::string deep, names;
  for (int i = 0; i < 60; ++i) deep += R"({"type":"array","items":)";
  deep += R"({"type":"string"})" + std::string(60, '}');
  for (int i = 0; i < 8000; ++i) names += (i ? ",\"x" : "\"x") + std::to_string(i * 7919) + '"';
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 400; ++i) wide += (i ? ",\"p" : "\"p") + std::to_string(i) + R"(":{})";
  wide += "}}";
  const std::vector<GrammarSource> hostile = {
      {.kind = Kind::regex, .text = "(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}"},
      {.kind = Kind::regex, .text = "(a|aa|aaa|a*)*(b|(a*)*)*x{0,100000}"},
      {.kind = Kind::regex, .text = std::string(5000, '(') + "a" + std::string(5000, ')')},
      {.kind = Kind::ebnf, .text = "root ::= root root root | \"a\" | \"\""},
      {.kind = Kind::ebnf, .text = "root ::= root"},
      {.kind = Kind::ebnf, .text = "root ::= a\na ::= b\nb ::= a"},
      {.kind = Kind::json_schema, .text = deep},
      {.kind = Kind::json_schema, .text = R"({"enum":[)" + names + "]}"},
      {.kind = Kind::json_schema, .text = wide},
      {.kind = Kind::json_schema, .text = R"({"$ref":"#"})"},
      {.kind = Kind::json_schema,
       .text =
           R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})"},
      {.kind = Kind::json_schema, .text = R"({"type":"string","minLength":2000000000})"},
      {.kind = Kind::json_schema,
       .text =
           R"({"type":"array","items":{"type":"array","items":{},"minItems":90000},"minItems":90000})"},
      {.kind = Kind::json_schema,
       .text = R"({"type":"string","pattern":"((a{1,999}){1,999}){1,999}"})"}};
  for (const GrammarSource& source : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      const auto grammar = compiler.compile(source, "here");
      if (!grammar) continue;  // a busy machine
      GrammarState state(grammar);
      std::mt19937 random(5);
      for (int i = 0; i < 200 && !state.finished(); ++i) {
        std::vector<int32_t> words((kVocab + 31) / 32);
        if (state.fill(words) && std::ranges::all_of(words, [](int32_t w) { return w == 0; }))
          break;
        if (!state.accept(draw(state, random))) break;
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.parts().where, "here");
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 40) << shortened(source.text, 60);
  }
  EXPECT_NE(compiler.compile({.kind = Kind::regex, .text = "a"}, "here"), nullptr);
}

TEST_F(GrammarTest, AStateThatTakesTooLongAllowsNothing) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  const auto grammar = compiler.compile({.kind = Kind::regex, .text = "a*"}, "here");
  GrammarState state(grammar, {.first_s = 0, .per_token_s = 0});
  std::vector<int32_t> words((kVocab + 31) / 32, -1);
  EXPECT_TRUE(state.fill(words));
  EXPECT_THAT(words, testing::Each(0));
  EXPECT_FALSE(state.accept('a'));
  EXPECT_FALSE(state.finished()) << "it did not end as the grammar says";
  EXPECT_TRUE(state.given_up());
  EXPECT_FALSE(GrammarState(grammar).given_up());
}

TEST_F(GrammarTest, TheLastOnesAreKeptWithinTheirBytes) {
  GrammarLimits limits;
  limits.cache_bytes = 1;
  GrammarCompiler compiler(tokenizer, kVocab, ends, limits);
  const GrammarSource a{.kind = Kind::regex, .text = "a"}, b{.kind = Kind::regex, .text = "b"};
  const auto first = compiler.compile(a, "here");
  EXPECT_EQ(compiler.find(a, "here"), first);
  EXPECT_EQ(compiler.compile(a, "here"), first);
  compiler.compile(b, "here");
  EXPECT_EQ(compiler.find(a, "here"), nullptr) << "the cache holds one";
  EXPECT_NE(compiler.find(b, "here"), nullptr);
  GrammarState state(first);  // who uses one keeps it
  EXPECT_TRUE(state.accept('a'));
}

// Why there is no grammar is known at once when the same is asked for again; that the machine was
// too busy is not held against a source.
TEST_F(GrammarTest, RefusalsAreRemembered) {
  const auto refused = [](const auto& work, const std::string& place) {
    try {
      work();
    } catch (const Error& error) {
      return error.parts().where == place;
    }
    return false;
  };
  OrderedJson many = {{"type", "object"}, {"properties", OrderedJson::object()}};
  for (int i = 0; i < 150; ++i) {
    many["properties"]["f" + std::to_string(i)] = {{"type", "string"}, {"maxLength", 60 + i}};
  }
  const GrammarSource endless{.kind = Kind::json_schema, .text = dump_json(many)};
  const GrammarSource wrong{.kind = Kind::regex, .text = "a**"};
  GrammarLimits limits;
  limits.sandbox.cpu_seconds = 1;
  limits.sandbox.wall_seconds = 100;
  GrammarCompiler compiler(tokenizer, kVocab, ends, limits);
  for (const GrammarSource& source : {endless, wrong}) {
    EXPECT_EQ(compiler.find(source, "one"), nullptr);
    EXPECT_TRUE(refused([&] { compiler.compile(source, "one"); }, "one"))
        << shortened(source.text, 60);
    EXPECT_TRUE(refused([&] { compiler.find(source, "two"); }, "two"))
        << shortened(source.text, 60);
  }
  limits.sandbox.cpu_seconds = 100;
  limits.sandbox.wall_seconds = 1;
  GrammarCompiler hurried(tokenizer, kVocab, ends, limits);
  EXPECT_EQ(hurried.compile(endless, "one"), nullptr);
  EXPECT_EQ(hurried.find(endless, "one"), nullptr);
}

// What the library behind this says of a source does not reach whoever sent it.
TEST_F(GrammarTest, RefusalsAreInOurWords) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  const std::pair<Kind, std::vector<const char*>> sources[] = {
      {Kind::regex,
       {"(",           ")",          "[",          "]a",          "a{3,1}",       "a{x}",
        "a{1,",        "*a",         "a**",        R"-((?=a)b)-", R"-((?<=a)b)-", R"-(a(?!b))-",
        R"-(\bword)-", R"-(\Bx)-",   R"-((a)\1)-", R"-(\p{L})-",  R"-(\k<n>)-",   "a^b",
        "a$b",         "[b-a]",      "[]",         R"-(\)-",      R"-(\u12)-",    R"-(\x1)-",
        R"-((?i)a)-",  R"-((?P<n)-", R"-((?:a)-"}},
      {Kind::ebnf,
       {"", "root ::= ", "root ::= missing", R"-(start ::= "a")-", "::::", R"-(root ::= "a)-",
        "root ::= [a", R"-(root ::= ("a")-", R"-(root ::= "a" root ::= "b")-",
        R"-(root ::= "a"{3,1})-", "root ::= root", R"-(root = "a")-", "1 ::= 2",
        R"-(root ::= [\z])-"}},
      {Kind::json_schema,
       {R"-({"type":"quaternion"})-", R"-({"type":3})-", R"-({"type":"integer","minimum":"a"})-",
        R"-({"type":"integer","minimum":5,"maximum":1})-",
        R"-({"type":"number","multipleOf":0.1})-",
        R"-({"type":"string","minLength":5,"maxLength":2})-", R"-({"enum":3})-",
        R"-({"type":"array","items":3})-", R"-({"type":"object","properties":3})-",
        R"-({"type":"string","pattern":"("})-", R"-({"type":"integer","minimum":1e30})-"}}};
  for (const auto& [kind, texts] : sources) {
    for (const char* text : texts) {
      try {
        compiler.compile({.kind = kind, .text = text}, "here");
      } catch (const Error& error) {
        const std::string value = error.parts().value;
        for (const char* word : {"Regex", "EBNF", "error at", "Expect", "xgrammar", ".cc",
                                 "JSON string is", "not supported", "Invalid", "Schema"}) {
          EXPECT_THAT(value, testing::Not(HasSubstr(word))) << text;
        }
        EXPECT_THAT(value, testing::Not(HasSubstr("\n"))) << text;
        EXPECT_NE(error.parts().accepted, "") << text << ": " << error.what();
      }
    }
  }
}

// What a $ref leads to is kept, however its pointer is written, and wherever the place is.
TEST_F(GrammarTest, EveryPointerOfARefIsFollowed) {
  const char* schemas[] = {
      R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"enum":["yes"]}}})",
      R"({"$ref":"#/$defs/a~0b","$defs":{"a~b":{"enum":["yes"]}}})",
      R"({"$ref":"#/$defs/a%20b","$defs":{"a b":{"enum":["yes"]}}})",
      R"({"$ref":"#/$defs/a~01b","$defs":{"a~1b":{"enum":["yes"]}}})",
      R"({"$ref":"#/$defs/x/1/z","$defs":{"x":[0,{"z":{"$ref":"#/$defs/c"}}],"c":{"enum":["yes"]}}})",
      R"({"anyOf":[{"enum":["yes"]},{"$ref":"#/anyOf/0"}]})"};
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  for (const char* schema : schemas) {
    const auto grammar = compiler.compile({.kind = Kind::json_schema, .text = schema}, "here");
    EXPECT_TRUE(accepts(grammar, "\"yes\"")) << schema;
    EXPECT_FALSE(accepts(grammar, "\"no\"")) << schema;
  }
}

TEST_F(GrammarTest, AnArrayWithoutItemsMayHaveAny) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  for (const char* schema :
       {R"({"type":"array","minItems":2})", R"({"type":["array","null"],"minItems":2})",
        R"({"properties":{"a":{"type":"array","minItems":2}}})"}) {
    const auto grammar = compiler.compile({.kind = Kind::json_schema, .text = schema}, "here");
    const bool inside = std::string_view(schema).find("properties") != std::string_view::npos;
    const auto text = [&](const std::string& array) {
      return inside ? "{\"a\": " + array + "}" : array;
    };
    EXPECT_TRUE(accepts(grammar, text(R"([1, "b", {"c": []}])"))) << schema;
    EXPECT_FALSE(accepts(grammar, text("[1]"))) << schema;
  }
}

TEST_F(GrammarTest, AFormThatNoTextHasIsRefused) {
  GrammarCompiler compiler(tokenizer, kVocab, ends);
  const GrammarSource sources[] = {{.kind = Kind::ebnf, .text = "root ::= root"},
                                   {.kind = Kind::ebnf, .text = "root ::= a\na ::= b\nb ::= a"},
                                   {.kind = Kind::ebnf, .text = "root ::= root", .before = "call "},
                                   {.kind = Kind::json_schema, .text = R"({"$ref":"#"})"}};
  for (const GrammarSource& source : sources) {
    try {
      compiler.compile(source, "here");
      ADD_FAILURE() << source.text;
    } catch (const Error& error) {
      EXPECT_EQ(error.parts().where, "here");
      EXPECT_FALSE(error.parts().value.empty()) << source.text;
      EXPECT_FALSE(error.parts().accepted.empty()) << source.text;
    }
  }
}

// What takes long holds up neither others nor whoever asks for it again.
TEST_F(GrammarTest, SlowOnesRunBesideOthersAndAreRemembered) {
  GrammarLimits limits;
  limits.sandbox.output_bytes = 64 << 10;
  limits.sandbox.wall_seconds = 100;
  GrammarCompiler compiler(tokenizer, kVocab, ends, limits);
  const GrammarSource slow{.kind = Kind::regex,
                           .text = "(((((a{1,99}){1,99}){1,99}){1,99}){1,99}){1,99}"};
  std::atomic<bool> ended{false};
  std::string first, again;
  const auto refusal = [&] {
    try {
      compiler.compile(slow, "here");
    } catch (const Error& error) {
      return error.parts().value;
    }
    return std::string("accepted");
  };
  std::thread thread([&] {
    first = refusal();
    ended = true;
  });
  compiler.compile({.kind = Kind::regex, .text = "a"}, "here");
  EXPECT_FALSE(ended) << "the other place was free";
  thread.join();
  const auto begin = std::chrono::steady_clock::now();
  again = refusal();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_EQ(first, again);
  EXPECT_NE(first, "accepted");
  EXPECT_THROW(compiler.find(slow, "here"), Error);
}

TEST(SchemaKeywords, WhatWouldBeLeftOutIsFound) {
  const auto conflict = [](const char* text) {
    return unsupported_keyword(parse_json<OrderedJson>(text, "schema"));
  };
  EXPECT_EQ(conflict(R"({"type":"string","enum":["a"],"description":"x"})"), "");
  EXPECT_EQ(conflict(R"({"properties":{"anyOf":{"type":"string"},"items":{}}})"), "")
      << "names of properties are no keywords";
  EXPECT_EQ(conflict(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"null"}}})"), "");
  EXPECT_EQ(conflict(R"({"items":{"$ref":"#","minimum":1}})"), "$.items: $ref beside minimum");
  EXPECT_EQ(conflict(R"({"anyOf":[{},{"oneOf":[{}],"items":{}}]})"),
            "$.anyOf[1]: oneOf beside items");
  EXPECT_EQ(conflict(R"({"items":{"properties":{"b":{"not":{}}}}})"), "$.items.properties.b: not");
  EXPECT_EQ(conflict(R"({"type":["string","null"],"enum":["a",null]})"), "");
  EXPECT_EQ(conflict(R"({"type":"object","anyOf":[{"type":"object"}]})"), "");
  EXPECT_EQ(conflict(R"({"uniqueItems":false})"), "");
  EXPECT_EQ(conflict(R"({"properties":{"a":{}},"required":["a","b"]})"),
            "$: required names what properties lacks");
}

}  // namespace
}  // namespace octet::text
