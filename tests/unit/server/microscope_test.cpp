// What the microscope's requests may say, and the files of the page.
#include "server/microscope.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "server/web/page.h"

namespace octet::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ServedModel served() {
  return {.name = "tiny", .max_model_len = 64, .vocab = 100};
}

MicroscopeRequest parse(const std::string& body) {
  return parse_microscope(body, served(), 8);
}

TEST(MicroscopeRequest, TokensOrTexts) {
  const MicroscopeRequest ids = parse(R"({"tokens":[5,6,7],"prompt_tokens":2,"position":2})");
  EXPECT_THAT(ids.tokens, ElementsAre(5, 6, 7));
  EXPECT_EQ(ids.prompt_tokens, 2);
  EXPECT_EQ(ids.position, 2);
  EXPECT_EQ(ids.top, 5u);
  const MicroscopeRequest texts =
      parse(R"({"model":"tiny","prompt":"a","completion":"b","top":0,"max_tokens":9})");
  EXPECT_EQ(texts.prompt, "a");
  EXPECT_EQ(texts.completion, "b");
  EXPECT_EQ(texts.top, 0u);
  EXPECT_EQ(texts.max_tokens, 9);
  EXPECT_FALSE(texts.position);
}

TEST(MicroscopeRequest, WhatIsWrongIsNamed) {
  struct Case {
    const char* body;
    const char* field;
    const char* message;
  };
  for (const Case& one : {
           Case{"{}", "tokens", "send either"},
           Case{R"({"tokens":[1],"prompt":"a"})", "tokens", "send either"},
           Case{R"({"tokens":[]})", "tokens", "empty"},
           Case{R"({"tokens":[1,2,3,4,5,6,7,8,9]})", "tokens", "may have 8"},
           Case{R"({"tokens":[1,2,3,4,5,6,7,8,"x"]})", "tokens", "may have 8"},
           Case{R"({"tokens":[1,100]})", "tokens", "0 to 99"},
           Case{R"({"tokens":[-1]})", "tokens", "no token id"},
           Case{R"({"tokens":[1.5]})", "tokens", "no token id"},
           Case{R"({"tokens":"a"})", "tokens", "array"},
           Case{R"({"tokens":7})", "tokens", "array"},
           Case{R"({"tokens":[1],"completion":"a"})", "completion", "goes with prompt"},
           Case{R"({"tokens":[1],"prompt_tokens":2})", "prompt_tokens", "from 1 to 1"},
           Case{R"({"tokens":[1,2],"position":0})", "position", "from 1"},
           Case{R"({"tokens":[1,2],"position":"a"})", "position", "from 1"},
           Case{R"({"tokens":[1,2],"top":21})", "top", "from 0 to 20"},
           Case{R"({"tokens":[1,2],"max_tokens":0})", "max_tokens", "from 1"},
           Case{R"({"tokens":[1,2],"model":"other"})", "model", "does not exist"},
       }) {
    SCOPED_TRACE(one.body);
    try {
      parse(one.body);
      ADD_FAILURE() << "accepted";
    } catch (const ApiError& error) {
      EXPECT_EQ(error.param, one.field);
      EXPECT_THAT(error.message, HasSubstr(one.message));
    }
  }
  for (const char* broken : {"", "[", "[]", R"({"prompt":1})", R"({"prompt":"a","prompt":"b"})"}) {
    SCOPED_TRACE(broken);
    EXPECT_THROW(parse(broken), Error);
  }
}

TEST(Page, EveryFileIsThereOnce) {
  std::set<std::string_view> paths;
  for (const Asset& asset : assets()) {
    EXPECT_TRUE(paths.insert(asset.path).second) << asset.path;
    EXPECT_FALSE(asset.content.empty()) << asset.path;
    EXPECT_EQ(asset.etag.size(), 18u);
    EXPECT_THAT(std::string(asset.type), HasSubstr("charset=utf-8"));
  }
  ASSERT_TRUE(find_asset("/"));
  EXPECT_FALSE(find_asset("/console/"));
  EXPECT_FALSE(find_asset("/console/../routes.cpp"));
  EXPECT_FALSE(find_asset(""));
  // Every file that one of them names is one of them.
  for (const Asset& asset : assets()) {
    for (size_t at = 0; (at = asset.content.find("\"/console/", at)) != std::string_view::npos;) {
      const size_t end = asset.content.find('"', ++at);
      EXPECT_TRUE(find_asset(asset.content.substr(at, end - at)))
          << asset.path << " names " << asset.content.substr(at, end - at);
    }
  }
}

// The policy of the page forbids these, and a browser would only then say so.
TEST(Page, NothingInline) {
  const std::string page(find_asset("/")->content);
  for (const char* pattern :
       {"style=", "onclick", "onload", "<style", "javascript:", "http://", "https://"}) {
    EXPECT_EQ(page.find(pattern), std::string::npos) << pattern;
  }
  for (const Asset& asset : assets()) {
    if (!asset.path.ends_with(".js")) continue;
    // Text is text: a model's output is never parsed as HTML or as a program.
    for (const char* pattern : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                                "eval(", "new Function", "DOMParser"}) {
      EXPECT_EQ(asset.content.find(pattern), std::string_view::npos)
          << asset.path << ": " << pattern;
    }
  }
}

}  // namespace
}  // namespace octet::server
