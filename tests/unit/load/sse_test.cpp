// A stream is the same events however it is cut.
#include "load/sse.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace octet::load {
namespace {

using ::testing::ElementsAre;
using Events = std::vector<std::string>;

// The events of `parts`; and whether something was left over.
std::pair<Events, bool> feed_all(const std::vector<std::string>& parts) {
  SseParser parser;
  Events events;
  for (const std::string& part : parts) {
    EXPECT_TRUE(parser.feed(part, [&](std::string_view data) { events.emplace_back(data); }));
  }
  return {events, parser.unfinished()};
}

Events events_of(const std::string& stream) {
  return feed_all({stream}).first;
}

TEST(Sse, EventsAreRead) {
  EXPECT_THAT(events_of("data: a\n\ndata: b\n\n"), ElementsAre("a", "b"));
  EXPECT_THAT(events_of("data: a\r\n\r\ndata: b\r\n\r\n"), ElementsAre("a", "b"));
  EXPECT_THAT(events_of("data: a\r\rdata: b\r\r"), ElementsAre("a", "b"));
  EXPECT_THAT(events_of("data:a\ndata:b\n\n"), ElementsAre("a\nb"));
  EXPECT_THAT(events_of("data:  a\n\n"), ElementsAre(" a"));  // one space only is the separator
  EXPECT_THAT(events_of("data\n\n"), ElementsAre(""));
}

TEST(Sse, WhatIsNoDataIsLeftOut) {
  EXPECT_THAT(events_of(": ping\n\nevent: x\nid: 1\nretry: 2\ndata: a\n\nevent: y\n\n"),
              ElementsAre("a"));
  EXPECT_THAT(events_of("datax: a\n\nDATA: b\n\n\n\n"), ElementsAre());
}

TEST(Sse, EveryCutGivesTheSame) {
  const std::string stream =
      ": hello\r\n\r\ndata: {\"a\": 1}\n\ndata: x\ndata: y\r\rdata: \xc3\xa4\n\ndata: [DONE]\n\n";
  const Events whole = events_of(stream);
  ASSERT_EQ(whole.size(), 4u);
  for (size_t first = 0; first <= stream.size(); ++first) {
    for (size_t second = first; second <= stream.size(); ++second) {
      EXPECT_EQ(feed_all({stream.substr(0, first), stream.substr(first, second - first),
                          stream.substr(second)}),
                (std::pair{whole, false}))
          << first << " " << second;
    }
  }
  std::vector<std::string> bytes;
  for (const char c : stream) bytes.emplace_back(1, c);
  EXPECT_EQ(feed_all(bytes).first, whole);
}

TEST(Sse, AStreamThatWasCutIsNoticed) {
  EXPECT_TRUE(feed_all({"data: a\n\ndata: b"}).second);
  EXPECT_TRUE(feed_all({"data: a\n\ndata: b\n"}).second);
  EXPECT_THAT(feed_all({"data: a\n\ndata: b\n"}).first, ElementsAre("a"));
  EXPECT_FALSE(feed_all({"data: a\n\n"}).second);
}

TEST(Sse, AnEventHasALimit) {
  SseParser parser(100);
  const auto nothing = [](std::string_view) {};
  EXPECT_TRUE(parser.feed("data: " + std::string(80, 'x') + "\n\n", nothing));
  EXPECT_TRUE(parser.feed("data: " + std::string(80, 'x'), nothing));
  EXPECT_FALSE(parser.feed(std::string(80, 'x'), nothing));
  EXPECT_FALSE(parser.feed("\n\n", nothing));
}

}  // namespace
}  // namespace octet::load
