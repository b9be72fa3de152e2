#include "base/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "unit/base/temp_dir.h"

namespace octet {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Settings {
  std::string model;
  int port = 8000;
  std::string kv = "fp8";
  bool prefix = true;
  bool eager = false;
  double temperature = 0.5;
  float share = 0.9f, top_p = 1.0f;
  std::optional<int64_t> max_len;
  std::vector<std::string> stop;
  std::string out;
};

class Options : public testing::Test {
 protected:
  Options() {
    table.positional("MODEL", &o.model, "directory of the model");
    table.group("Network");
    table.add("--port", &o.port, "port to listen on", {.least = 1, .most = 65535});
    table.group("Engine");
    table.add("--kv-cache-dtype", &o.kv, "type of the KV cache", {.choices = {"fp8", "bf16"}});
    table.add("--enable-prefix-caching", &o.prefix, "keep prefixes");
    table.add("--enforce-eager", &o.eager, "no graphs");
    table.add("--temperature", &o.temperature, "of sampling", {.least = 0});
    table.add("--share", &o.share, "of memory");
    table.add("--top-p", &o.top_p, "of the probability", {.most = 1, .above = 0});
    table.add("--max-model-len", &o.max_len, "longest request", {.least = 1});
    table.add("--stop", &o.stop, "text that ends a completion");
    table.add("--out", &o.out, "where to write", {.metavar = "FILE", .written = true});
  }

  OptionTable::Outcome parse(std::vector<std::string> args) { return table.parse(args); }

  std::string error_of(std::vector<std::string> args) {
    try {
      table.parse(args);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

  Settings o;
  OptionTable table{"octet serve", "Serve a model."};
  test::TempDir dir;
};

TEST_F(Options, FlagsSetFieldsAndTheRestKeepsItsDefaults) {
  EXPECT_EQ(parse({"m", "--port", "80", "--kv-cache-dtype=bf16", "--no-enable-prefix-caching",
                   "--enforce-eager", "--temperature", "1e-1", "--max-model-len", "9000000000",
                   "--stop", "a", "--stop", "--b"}),
            OptionTable::Outcome::run);
  EXPECT_EQ(o.model, "m");
  EXPECT_EQ(o.port, 80);
  EXPECT_EQ(o.kv, "bf16");
  EXPECT_FALSE(o.prefix);
  EXPECT_TRUE(o.eager);
  EXPECT_EQ(o.temperature, 0.1);
  EXPECT_EQ(o.share, 0.9f);
  EXPECT_EQ(o.max_len, 9000000000);
  EXPECT_THAT(o.stop, ElementsAre("a", "--b"));
  EXPECT_EQ(table.origin("--port"), "flag");
  EXPECT_EQ(table.origin("--share"), "default");
}

TEST_F(Options, FileGoesAboveDefaultsAndFlagsAboveTheFile) {
  const std::string file = dir.file("c.json", R"({
    // comments are welcome
    "model": "m", "port": 1, "share": 0.25, "stop": ["x", "y"], "enforce_eager": true,
    "max_model_len": null, "temperature": 1
  })");
  parse({"--config", file, "--port", "2"});
  EXPECT_EQ(o.model, "m");
  EXPECT_EQ(o.port, 2);
  EXPECT_EQ(o.share, 0.25f);
  EXPECT_EQ(o.temperature, 1.0);
  EXPECT_THAT(o.stop, ElementsAre("x", "y"));
  EXPECT_TRUE(o.eager);
  EXPECT_EQ(o.max_len, std::nullopt);
  EXPECT_EQ(table.origin("--share"), "file " + file);
}

TEST_F(Options, PrintsAConfigurationThatItReadsBack) {
  ASSERT_EQ(parse({"m", "--port", "5", "--stop", "\"\n", "--print-config"}),
            OptionTable::Outcome::done);
  const std::string text = table.output();
  EXPECT_THAT(text, AllOf(HasSubstr("\"port\": 5,"), HasSubstr("// flag\n"),
                          HasSubstr("\"share\": 0.9,"), HasSubstr("\"max_model_len\": null,")));
  Settings again;
  OptionTable copy("x", "y");
  copy.positional("MODEL", &again.model, "");
  for (const char* flag : {"--kv-cache-dtype", "--out"}) copy.add(flag, &again.out, "");
  copy.add("--port", &again.port, "");
  copy.add("--enable-prefix-caching", &again.prefix, "");
  copy.add("--enforce-eager", &again.eager, "");
  copy.add("--temperature", &again.temperature, "");
  copy.add("--share", &again.share, "");
  copy.add("--top-p", &again.top_p, "");
  copy.add("--max-model-len", &again.max_len, "");
  copy.add("--stop", &again.stop, "");
  copy.parse(std::vector<std::string>{"--config", dir.file("again.json", text)});
  EXPECT_EQ(again.port, 5);
  EXPECT_THAT(again.stop, ElementsAre("\"\n"));
}

TEST_F(Options, SuggestsTheNearestFlagAndKey) {
  EXPECT_THAT(error_of({"m", "--max-model-length", "5"}),
              AllOf(HasSubstr("unknown flag"), HasSubstr("did you mean --max-model-len?")));
  EXPECT_THAT(error_of({"m", "--no-enable-prefix-cachin"}),
              HasSubstr("--no-enable-prefix-caching?"));
  EXPECT_THAT(error_of({"m", "--quite-something-else=1"}), HasSubstr("see octet serve --help"));
  EXPECT_THAT(error_of({"m", "--config", dir.file("c.json", R"({"prot": 1})")}),
              AllOf(HasSubstr("unknown key"), HasSubstr("did you mean port?")));
  EXPECT_THAT(error_of({"m", "extra"}), AllOf(HasSubstr("too many"), HasSubstr("extra")));
}

TEST_F(Options, RefusesBadValuesWithWhatIsAccepted) {
  EXPECT_THAT(error_of({}), HasSubstr("MODEL is missing"));
  EXPECT_THAT(error_of({"m", "--port", "0"}),
              AllOf(HasSubstr("--port"), HasSubstr("found:    0"), HasSubstr("1 to 65535")));
  EXPECT_THAT(error_of({"m", "--port", "80x"}), HasSubstr("an integer"));
  EXPECT_THAT(error_of({"m", "--port", "99999999999"}), HasSubstr("an integer"));
  EXPECT_THAT(error_of({"m", "--kv-cache-dtype", "fp9"}), HasSubstr("fp8, bf16"));
  EXPECT_THAT(error_of({"m", "--temperature", "-1"}), HasSubstr("at least 0"));
  // What was typed is shown, not what JSON makes of it.
  EXPECT_THAT(error_of({"m", "--temperature", "nan"}),
              AllOf(HasSubstr("a number"), HasSubstr("found:    nan")));
  EXPECT_THAT(error_of({"m", "--temperature", "-inf"}), HasSubstr("found:    -inf"));
  EXPECT_THAT(error_of({"m", "--share", "1e308"}),
              AllOf(HasSubstr("1e+308"), HasSubstr("a number, at most 3.4e38")));
  EXPECT_THAT(error_of({"m", "--max-model-len", "1e30"}), HasSubstr("found:    1e30"));
  for (const char* bad : {"0", "-0.5", "1.01"}) {
    EXPECT_THAT(error_of({"m", "--top-p", bad}), HasSubstr("a number, above 0 and at most 1"));
  }
  EXPECT_EQ(error_of({"m", "--top-p", "1e-9"}), "no error");
  EXPECT_THAT(error_of({"m", "--port"}), HasSubstr("--port"));
  EXPECT_THAT(error_of({"m", "--config", dir.file("c.json", R"({"port": "x"})")}),
              AllOf(HasSubstr("c.json, $.port"), HasSubstr("1 to 65535")));
  EXPECT_THAT(error_of({"m", "--config", dir.file("d.json", R"({"port": 18446744073709551615})")}),
              HasSubstr("$.port"));
  EXPECT_THAT(error_of({"m", "--config", (dir / "none").string()}), HasSubstr("No such file"));
}

TEST_F(Options, RefusesASecondValueOfWhatTakesOne) {
  EXPECT_THAT(error_of({"m", "--port", "1", "--port", "2"}),
              AllOf(HasSubstr("more than once"), HasSubstr("--port"), HasSubstr("1, 2")));
  EXPECT_THAT(error_of({"m", "--port=1", "--port=1"}), HasSubstr("--port"));
  EXPECT_THAT(error_of({"m", "--enforce-eager", "--no-enforce-eager"}),
              AllOf(HasSubstr("more than once"), HasSubstr("--enforce-eager")));
  EXPECT_THAT(error_of({"m", "--config", "a", "--config", "b"}), HasSubstr("--config"));
  EXPECT_EQ(error_of({"m", "--stop", "a", "--stop", "a"}), "no error");
}

TEST_F(Options, HelpGroupsRowsAndShowsDefaultsAndChoices) {
  ASSERT_EQ(parse({"--help"}), OptionTable::Outcome::done);
  const std::string& text = table.output();
  SCOPED_TRACE(text);
  EXPECT_THAT(text, AllOf(HasSubstr("Usage: octet serve MODEL [options]"),
                          HasSubstr("Network:\n  --port N"), HasSubstr("default 8000"),
                          HasSubstr("fp8, bf16"), HasSubstr("--[no-]enable-prefix-caching"),
                          HasSubstr("--out FILE")));
  EXPECT_THAT(table.markdown(), HasSubstr("| `--port` | port to listen on |"));
}

TEST_F(Options, RefusesAtOnceAFileThatCannotBeWritten) {
  for (const char* good : {"-", "/dev/null"}) EXPECT_EQ(error_of({"m", "--out", good}), "no error");
  EXPECT_EQ(error_of({"m", "--out", dir / "result.json"}), "no error");
  EXPECT_FALSE(std::filesystem::exists(dir / "result.json"));
  EXPECT_THAT(error_of({"m", "--out", dir / "new/result.json"}), HasSubstr("no folder"));
  EXPECT_FALSE(std::filesystem::exists(dir / "new"));
  EXPECT_THAT(error_of({"m", "--out", dir.path()}), HasSubstr("is a folder"));
  EXPECT_EQ(parse({"--out", dir.path(), "--help"}), OptionTable::Outcome::done);
}

TEST_F(Options, DeclaringAFlagTwiceIsAFault) {
  EXPECT_THROW(table.add("--port", &o.port, "again"), Fault);
}

}  // namespace
}  // namespace octet
