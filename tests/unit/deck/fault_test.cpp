// SPDX-License-Identifier: Apache-2.0
//
// Tables [debug] and [health] of the deck.
#include "support.hpp"

namespace trireme::deck {
namespace {

using testing::HasSubstr;
using testing::Not;

Deck with_fault(const std::string& fault) {
  return parse(minimal_deck + "[debug]\nfault = \"" + fault + "\"\n", "deck.toml");
}

TEST(DeckFault, IsReadInItsWords) {
  using Kind = Fault::Kind;
  const auto faults =
      with_fault("kill rank 2 step 17 phase checkpoint-write; sleep 0.5 step 3..9 rank 0")
          .debug.faults;
  ASSERT_EQ(faults.size(), 2);
  EXPECT_EQ(
      faults[0],
      (Fault{.kind = Kind::kill, .rank = 2, .first = 17, .last = 17, .phase = "checkpoint-write"}));
  EXPECT_EQ(faults[1],
            (Fault{.kind = Kind::sleep, .seconds = 0.5, .rank = 0, .first = 3, .last = 9}));
  EXPECT_EQ(with_fault("nan rank 1 step 4").debug.faults.at(0).kind, Kind::nan);
  EXPECT_TRUE(with_fault("").debug.faults.empty());
}

TEST(DeckFault, IsWrittenAsItIsRead) {
  for (const char* fault : {"kill rank 2 step 17 phase checkpoint-write",
                            "sleep 0.125 rank 0 step 3..9; stop rank 1 step 1; flip rank 3 step 5; "
                            "nan rank 0 step 2..2"}) {
    const Deck deck = with_fault(fault);
    EXPECT_EQ(parse(write(deck), "written").debug.faults, deck.debug.faults) << write(deck);
  }
  EXPECT_THAT(write(parse(minimal_deck, "deck.toml")), Not(HasSubstr("\nfault = ")));
}

TEST(DeckDebug, TheDeviceIsThatOfTheRunUnlessATestSaysOtherwise) {
  const auto with_device = [](const std::string& device) {
    return parse(minimal_deck + "[debug]\ndevice = " + device + "\n", "deck.toml");
  };
  EXPECT_EQ(parse(minimal_deck, "deck.toml").debug.device, DebugDevice::automatic);
  EXPECT_EQ(with_device("\"auto\"").debug.device, DebugDevice::automatic);
  const Deck deck = with_device("\"emulated\"");
  EXPECT_EQ(deck.debug.device, DebugDevice::emulated);
  EXPECT_EQ(parse(write(deck), "written").debug.device, deck.debug.device) << write(deck);
  const std::string text = write(with_device("\"auto\""));
  ASSERT_THAT(text, HasSubstr("[debug]"));
  EXPECT_EQ(text.find("\ndevice = ", text.find("[debug]")), std::string::npos);
}

TEST(DeckHealth, HasTheContractsDefaultsAndCanBeOff) {
  const HealthOptions health = parse(minimal_deck, "deck.toml").health;
  EXPECT_TRUE(health.skip_nonfinite);
  EXPECT_EQ(health.spike_ratio, 10);
  EXPECT_EQ(health.spike_warn, 3);
  EXPECT_EQ(health.grad_norm_warn, 100);
  EXPECT_EQ(health.rollback_after, 5);
  const HealthOptions off =
      parse(minimal_deck +
                "[health]\nspike_ratio = 0\ncompare_replicas = \"none\"\nwatchdog = \"none\"\n",
            "deck.toml")
          .health;
  EXPECT_FALSE(off.compare_replicas || off.watchdog);
}

}  // namespace
}  // namespace trireme::deck
