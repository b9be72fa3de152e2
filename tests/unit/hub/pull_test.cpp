// What a download is made of, before any network: addresses, lists of files, the choice among them.
#include "hub/pull.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hub/sha256.h"
#include "unit/base/error_of.h"
#include "unit/base/temp_dir.h"

namespace octet::hub {
namespace {

using test::error_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Url, PartsAreRead) {
  const Url url = parse_url("https://example.org/a/b?c=d#e", "x");
  EXPECT_TRUE(url.tls);
  EXPECT_EQ(url.host, "example.org");
  EXPECT_EQ(url.port, "443");
  EXPECT_EQ(url.target, "/a/b?c=d");
  EXPECT_EQ(url.origin(), "https://example.org");
  EXPECT_EQ(parse_url("http://[::1]:8080", "x").text(), "http://[::1]:8080/");
  EXPECT_TRUE(parse_url("http://127.0.0.1:1/", "x").is_loopback());
  EXPECT_FALSE(parse_url("http://127.example.org/", "x").is_loopback());
}

TEST(Url, WhatIsNoAddressIsRefused) {
  for (const char* text : {"", "example.org", "ftp://a/b", "http://", "https:///a", "http://a:b/",
                           "http://u:p@a/", "http://a/b c", "http://a/\xc3\xa4", "http://a:123456/",
                           "http://[::1/", "http://a/\r\nX: y"}) {
    EXPECT_THAT(error_of([&] { parse_url(text, "--endpoint"); }), HasSubstr("--endpoint")) << text;
  }
}

TEST(Url, RedirectsAreResolved) {
  const Url base = parse_url("https://a.org/x/y?z", "x");
  EXPECT_EQ(resolve(base, "/q").text(), "https://a.org/q");
  EXPECT_EQ(resolve(base, "q?r").text(), "https://a.org/x/q?r");
  EXPECT_EQ(resolve(base, "http://b.org:81/q").text(), "http://b.org:81/q");
  EXPECT_EQ(resolve(base, "//b.org/q").text(), "https://b.org/q");
  EXPECT_THAT(error_of([&] { resolve(base, "ftp://b.org/"); }), HasSubstr("redirect"));
}

TEST(Url, PathsAreEncodedAndBack) {
  const std::string name = "a b/\xc3\xa4%#?.txt";
  EXPECT_EQ(encode_path(name), "a%20b/%C3%A4%25%23%3F.txt");
  EXPECT_EQ(decode_path(encode_path(name)), name);
  EXPECT_EQ(decode_path("100%/%zz%4"), "100%/%zz%4");
}

Source source_of(const std::string& text, const std::string& revision = "") {
  PullOptions options;
  options.source = text;
  options.revision = revision;
  return parse_source(options);
}

TEST(Pull, SourcesAreNamesPagesOrFiles) {
  EXPECT_EQ(source_of("org/name").repo, "org/name");
  EXPECT_EQ(source_of("org/name").revision, "main");
  EXPECT_EQ(source_of("https://h.org/org/name").repo, "org/name");
  EXPECT_EQ(source_of("https://h.org/org/name/tree/v2").revision, "v2");
  EXPECT_EQ(source_of("https://h.org/org/name/tree/v2", "v3").revision, "v3");
  const Source file = source_of("https://h.org/org/name/resolve/main/a/b%20c.gguf?download=true");
  EXPECT_EQ(file.repo, "org/name");
  EXPECT_EQ(file.file, "a/b c.gguf");
  const Source plain = source_of("https://h.org/files/models/m.gguf");
  EXPECT_EQ(plain.repo, "");
  EXPECT_EQ(plain.file, "m.gguf");
  EXPECT_EQ(source_of("https://h.org/models/m.gguf").file, "m.gguf");
  EXPECT_EQ(source_of("https://h.org/org/name-1.5-GGUF").repo, "org/name-1.5-GGUF");
  for (const char* text : {"", "a/b/c", "../a", "a/..", "https://h.org/", "https://h.org/x/y/..",
                           "https://h.org/a/b/c/%2e%2e"}) {
    EXPECT_THAT(error_of([&] { source_of(text); }), HasSubstr("MODEL")) << text;
  }
}

TEST(Pull, NamesStayInside) {
  for (const char* name : {"a", "a/b.c", ".gitattributes", "a..b", "..a/b.."}) {
    EXPECT_TRUE(is_safe_name(name)) << name;
  }
  for (const char* name :
       {"", "/a", "a/", "..", "a/../b", "../a", "a/..", "./a", "a//b", "a\\b", "a\nb", "a\x7f"}) {
    EXPECT_FALSE(is_safe_name(name)) << name;
  }
  EXPECT_FALSE(is_safe_name(std::string("a\0b", 3)));
  EXPECT_FALSE(is_safe_name(std::string(300, 'a')));
}

std::vector<std::string> chosen(const std::vector<std::string>& names,
                                const std::vector<std::string>& include = {},
                                const std::vector<std::string>& exclude = {}) {
  std::vector<ListedFile> files;
  for (const std::string& name : names) files.push_back({.name = name});
  std::vector<std::string> left;
  for (const ListedFile& file : choose(files, include, exclude, "list")) left.push_back(file.name);
  return left;
}

TEST(Pull, WhatOctetCannotUseIsLeftOut) {
  EXPECT_THAT(chosen({"config.json", "m.safetensors", "pytorch_model.bin", "original/x.pth"}),
              ElementsAre("config.json", "m.safetensors"));
  EXPECT_THAT(chosen({"config.json", "pytorch_model.bin"}),
              ElementsAre("config.json", "pytorch_model.bin"));
  EXPECT_THAT(chosen({"a.gguf", "m.safetensors", "x"}, {"*.gguf"}), ElementsAre("a.gguf"));
  EXPECT_THAT(chosen({"a", "b", "c"}, {}, {"b"}), ElementsAre("a", "c"));
  EXPECT_THAT(chosen({"a.gguf", "README.md"}), ElementsAre("a.gguf", "README.md"));
  EXPECT_THAT(error_of([] { chosen({"a.gguf", "b.gguf"}); }), HasSubstr("--include"));
  EXPECT_THAT(error_of([] { chosen({"a"}, {"b"}); }), HasSubstr("no file is left"));
}

TEST(Pull, ListingsGiveSizesAndSums) {
  std::string commit;
  const auto files = parse_listing(
      R"({"sha": "abc", "siblings": [{"rfilename": "a", "size": 3},
          {"rfilename": "b", "size": 5, "lfs": {"sha256": "00ff", "size": 5}}]})",
      "list", &commit);
  EXPECT_EQ(commit, "abc");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0].size, 3);
  EXPECT_EQ(files[1].sha256, "00ff");
}

TEST(Sha256, IsTheStandards) {
  const test::TempDir dir;
  EXPECT_EQ(sha256_of(dir.file("abc", "abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_of(dir.file("empty", "")),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

}  // namespace
}  // namespace octet::hub
