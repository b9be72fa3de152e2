#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet {
namespace {

using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string parse_error_of(const std::string& text, JsonRules rules = {}) {
  return error_of([&] { parse_json(text, "a.json", rules); });
}

TEST(ParseJson, NamesFileLineColumnAndFault) {
  EXPECT_THAT(parse_error_of("{\n  \"a\": 1,\n  \"b\" 2\n}"),
              AllOf(HasSubstr("a.json, line 3, column 7"), HasSubstr("expected ':'")));
  EXPECT_THAT(parse_error_of(""), HasSubstr("line 1"));
  EXPECT_THAT(parse_error_of("{} {}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error_of("\"\xff\""), HasSubstr("UTF-8"));
  EXPECT_THAT(parse_error_of("1e999"), HasSubstr("found:    number overflow"));
  const test::TempDir dir;
  EXPECT_THAT(error_of([&] { parse_json_file(dir.file("c.json", "[1,")); }), HasSubstr("c.json"));
  EXPECT_THAT(error_of([&] { parse_json_file(dir / "none.json"); }), HasSubstr("No such file"));
  EXPECT_EQ(parse_json_file(dir.file("d.json", "[1]")).dump(), "[1]");
}

TEST(ParseJson, RefusesDuplicateKeysUnlessAllowed) {
  EXPECT_THAT(parse_error_of(R"({"a": {"x": 1, "x": 2}})"), HasSubstr("\"x\""));
  EXPECT_EQ(parse_error_of(R"([{"x": 1}, {"x": {"x": 2}}])"), "no error");
  EXPECT_EQ(parse_json(R"({"x": 1, "x": 2})", "a", {.duplicates = true}).dump(), R"({"x":2})");
}

TEST(ParseJson, RefusesBottomlessNests) {
  const auto nest = [](size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  EXPECT_EQ(parse_error_of(nest(64)), "no error");
  EXPECT_THAT(parse_error_of(nest(65)), HasSubstr("at most 64 levels"));
  EXPECT_THAT(parse_error_of(std::string(1000000, '[')), HasSubstr("deeply"));
}

// In time that grows with the text alone: not with the square of the objects of an array.
TEST(ParseJson, ManyObjectsTakeNoLongerThanTheirBytes) {
  std::string many = "[{}";
  for (int i = 0; i < 200'000; ++i) many += ",{}";
  many += "]";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(many, "j").size(), 200'001u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));  // was 20
}

TEST(ParseJson, ErrorsStayShort) {
  for (const std::string& bad :
       {"\"" + std::string(1'000'000, 'x'), std::string(1'000'000, '9') + "x"}) {
    try {
      parse_json(bad, "j");
      FAIL();
    } catch (const Error& error) {
      EXPECT_LT(std::string(error.what()).size(), 2000u);
    }
  }
}

TEST(ParseJson, OrderedKeepsTheOrder) {
  EXPECT_EQ(dump_json(parse_json<OrderedJson>(R"({"b":1,"a":2})", "x")), R"({"b":1,"a":2})");
}

TEST(DumpJson, ReplacesWhatIsNotUtf8) {
  EXPECT_EQ(dump_json(Json("a\xff")), "\"a\xef\xbf\xbd\"");
  EXPECT_EQ(dump_json(Json{{"a", 1}}, 1), "{\n \"a\": 1\n}");
}

class View : public testing::Test {
 protected:
  const Json json = parse_json(R"({
    "i": 3, "float_i": 8192.0, "half": 0.5, "big": 3000000000, "huge": 18446744073709551615,
    "t": true, "s": "text", "null": null, "list": [1, 2], "mixed": [1, "a"],
    "sub": {"x": {"y": "deep"}}, "objects": [{"a": 1}, {"a": 2}], "odd": [{}, 7]})",
                               "config.json");
  const JsonView view{json, "config.json"};
};

TEST_F(View, GivesTypedValues) {
  EXPECT_EQ(view.get<int>("i"), 3);
  EXPECT_EQ(view.get<int>("float_i"), 8192);
  EXPECT_EQ(view.get<int64_t>("big"), 3000000000);
  EXPECT_EQ(view.get<double>("i"), 3.0);
  EXPECT_EQ(view.get<float>("half"), 0.5f);
  EXPECT_EQ(view.get<bool>("t"), true);
  EXPECT_EQ(view.get<std::string>("s"), "text");
  EXPECT_THAT(view.get<std::vector<int>>("list"), ElementsAre(1, 2));
  EXPECT_EQ(view.at("sub").at("x").get<std::string>("y"), "deep");
  EXPECT_EQ(view.integer("i", 1, 3), 3);
  EXPECT_EQ(view.number("half", 0.5, 1), 0.5);
  const std::vector<JsonView> objects = view.elements("objects");
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[1].get<int>("a"), 2);
}

TEST_F(View, TreatsNullAsAbsent) {
  EXPECT_FALSE(view.has("null"));
  EXPECT_FALSE(view.has("none"));
  EXPECT_EQ(view.get<int>("null", 7), 7);
  EXPECT_EQ(view.integer("none", 0, 1, 9), 9);
  EXPECT_EQ(view.get_optional<int>("none"), std::nullopt);
  EXPECT_EQ(view.get_optional<int>("i"), 3);
  EXPECT_FALSE(view.find("null"));
  EXPECT_TRUE(view.find("sub"));
}

TEST_F(View, SaysFilePathValueAndType) {
  EXPECT_THAT(error_of([&] { view.at("sub").at("x").get<int>("y"); }),
              AllOf(HasSubstr("config.json, $.sub.x.y"), HasSubstr("\"deep\" (string)"),
                    HasSubstr("accepted: an integer")));
  EXPECT_THAT(error_of([&] { view.get<int>("half"); }), HasSubstr("an integer"));
  EXPECT_THAT(error_of([&] { view.get<int>("big"); }), HasSubstr("32 bits"));
  EXPECT_THAT(error_of([&] { view.get<int64_t>("huge"); }), HasSubstr("64 bits"));
  EXPECT_THAT(error_of([&] { view.get<bool>("i"); }), HasSubstr("true or false"));
  EXPECT_THAT(error_of([&] { view.get<std::string>("i", "x"); }), HasSubstr("a string"));
  EXPECT_THAT(error_of([&] { view.get<std::vector<int>>("mixed"); }), HasSubstr("every element"));
  EXPECT_THAT(error_of([&] { view.get<int>("none"); }), HasSubstr("missing"));
  EXPECT_THAT(error_of([&] { view.get<int>("null"); }), HasSubstr("null"));
  EXPECT_THAT(error_of([&] { view.at("i"); }), HasSubstr("an object"));
  EXPECT_THAT(error_of([&] { view.integer("i", 4, 8); }), HasSubstr("4 to 8"));
  EXPECT_THAT(error_of([&] { view.number("half", 1, 2); }),
              AllOf(HasSubstr("config.json, $.half"), HasSubstr("0.5"), HasSubstr("1 to 2")));
  EXPECT_THAT(error_of([&] { view.elements("objects")[1].get<int>("b"); }),
              HasSubstr("config.json, $.objects[1].b"));
  EXPECT_THAT(error_of([&] { view.elements("odd"); }), HasSubstr("config.json, $.odd[1]"));
  EXPECT_THAT(error_of([&] { view.elements("sub"); }), HasSubstr("an array of objects"));
  EXPECT_THAT(error_of([&] { JsonView(view.json().at("list"), "f.json"); }), HasSubstr("f.json"));
}

}  // namespace
}  // namespace octet
