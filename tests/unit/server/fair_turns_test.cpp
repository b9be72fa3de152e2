// Who has his turn when, on an event loop of its own.
#include "server/fair_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <random>
#include <vector>

namespace octet::server {
namespace {

namespace asio = boost::asio;
using std::chrono::milliseconds;
using ::testing::ElementsAre;

class FairTurnsTest : public testing::Test {
 protected:
  asio::io_context io_{1};
  std::vector<std::string> begun_;           // clients, in the order of their turns
  std::vector<std::shared_ptr<void>> held_;  // turns that have not ended
  FairTurns::Clock::time_point now_{};
  int missed_ = 0;  // waits that were over

  void ask(const std::shared_ptr<FairTurns>& turns, std::string client,
           milliseconds most = milliseconds(60'000)) {
    asio::co_spawn(
        io_,
        [this, turns, client, most]() -> asio::awaitable<void> {
          std::shared_ptr<void> turn = co_await turns->wait(client, most);
          if (!turn) {
            ++missed_;
            co_return;
          }
          begun_.push_back(client);
          held_.push_back(std::move(turn));
        },
        asio::detached);
    settle();
  }
  void settle() {
    io_.restart();
    while (io_.poll() > 0) io_.restart();
  }
  void end_first() {
    held_.erase(held_.begin());
    settle();
  }
};

TEST_F(FairTurnsTest, ClientsTakeTurns) {
  const auto turns = std::make_shared<FairTurns>(1);
  for (const char* client : {"a", "a", "a", "b", "c", "b"}) ask(turns, client);
  while (!held_.empty()) end_first();
  EXPECT_THAT(begun_, ElementsAre("a", "a", "b", "c", "a", "b"));
}

TEST_F(FairTurnsTest, OneClientNeverHasAllPlaces) {
  const auto turns = std::make_shared<FairTurns>(2);
  for (int i = 0; i < 5; ++i) ask(turns, "a");
  EXPECT_THAT(begun_, ElementsAre("a"));
  ask(turns, "b");  // at once, behind four
  EXPECT_THAT(begun_, ElementsAre("a", "b"));
  EXPECT_EQ(turns->waiting(), 4u);
}

// Two clients whose turns are long have one of two places together, once that is known; whoever
// else comes has the other at once, or as soon as one of them ends.
TEST_F(FairTurnsTest, LongTurnsLeaveAPlaceToOthers) {
  const auto turns = std::make_shared<FairTurns>(2, [this] { return now_; });
  for (const char* client : {"a", "b", "a", "b", "a", "b"}) ask(turns, client);
  EXPECT_THAT(begun_, ElementsAre("a", "b"));
  now_ += std::chrono::seconds(4);
  ask(turns, "c");  // behind four
  end_first();      // a's
  EXPECT_THAT(begun_, ElementsAre("a", "b", "c"));
  end_first();  // b's: c's is the other place
  EXPECT_THAT(begun_, ElementsAre("a", "b", "c", "a"));
  end_first();  // c's: its place stays free
  EXPECT_EQ(held_.size(), 1u);
  ask(turns, "d");
  ask(turns, "c");
  EXPECT_THAT(begun_, ElementsAre("a", "b", "c", "a", "d"));
  end_first();  // a's
  EXPECT_THAT(begun_, ElementsAre("a", "b", "c", "a", "d", "c"));
  while (!held_.empty()) end_first();
  EXPECT_EQ(turns->waiting(), 0u);
}

TEST_F(FairTurnsTest, WhatWasTakenIsForgotten) {
  const auto turns = std::make_shared<FairTurns>(2, [this] { return now_; });
  for (const char* client : {"a", "b"}) ask(turns, client);
  now_ += std::chrono::seconds(4);
  while (!held_.empty()) end_first();
  for (const char* client : {"a", "b"}) ask(turns, client);
  EXPECT_EQ(held_.size(), 1u);
  while (!held_.empty()) end_first();
  now_ += std::chrono::seconds(150);
  for (const char* client : {"a", "b"}) ask(turns, client);
  EXPECT_EQ(held_.size(), 2u);
}

TEST_F(FairTurnsTest, AWaitEnds) {
  const auto turns = std::make_shared<FairTurns>(1);
  ask(turns, "a");
  ask(turns, "b", milliseconds(1));
  io_.restart();
  io_.run_for(milliseconds(50));
  EXPECT_EQ(missed_, 1);
  EXPECT_EQ(turns->waiting(), 0u);
  ask(turns, "c");
  end_first();
  EXPECT_THAT(begun_, ElementsAre("a", "c"));
}

// Whoever asks gets his turn, no place is lost, and none is given twice.
TEST_F(FairTurnsTest, AnyOrderOfEvents) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    begun_.clear();
    const size_t places = 1 + random() % 3;
    const auto turns = std::make_shared<FairTurns>(places);
    size_t asked = 0;
    for (int step = 0; step < 40; ++step) {
      if (random() % 2 == 0 || held_.empty()) {
        ask(turns, std::string(1, static_cast<char>('a' + random() % 4)));
        ++asked;
      } else {
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(random() % held_.size()));
        settle();
      }
      ASSERT_LE(held_.size(), places);
      ASSERT_EQ(begun_.size() + turns->waiting(), asked);
    }
    while (!held_.empty()) end_first();
    EXPECT_EQ(begun_.size(), asked);
    EXPECT_EQ(turns->waiting(), 0u);
  }
}

}  // namespace
}  // namespace octet::server
