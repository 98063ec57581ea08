// SPDX-License-Identifier: Apache-2.0
//
// Texts: misspelled words, untrusted text on one line, cells of CSV, and numbers for people.
#include "trireme/base/text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Text, EnergyHasTheUnitOfItsSize) {
  EXPECT_EQ(format_energy(0.0123), "0.0123 J");
  EXPECT_EQ(format_energy(512), "512 J");
  EXPECT_EQ(format_energy(12345), "12.3 kJ");
  EXPECT_EQ(format_energy(3.6e6), "1 kWh");
  EXPECT_EQ(format_energy(4.5e9), "1.25 MWh");
}

TEST(Text, EditDistanceCountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("momentun", "momentum"), 1);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("wramup", "warmup"), 1);
  for (const char* a : {"rate", "momentum", "", "x"})
    for (const char* b : {"rat", "momenta", "yx", "global"})
      EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
}

TEST(Text, NearestFindsMisspellingsOnly) {
  const std::vector<std::string> keys = {"momentum", "nesterov", "weight_decay", "clip_norm",
                                         "rate"};
  EXPECT_EQ(nearest("momentun", keys), "momentum");
  EXPECT_EQ(nearest("Nesterov", keys), "nesterov");
  EXPECT_EQ(nearest("wieght_decay", keys), "weight_decay");
  EXPECT_EQ(nearest("weight", keys), "weight_decay");
  EXPECT_EQ(nearest("momentum_factor", keys), "momentum");
  EXPECT_EQ(nearest("zebra", keys), "");
  EXPECT_EQ(nearest("anything", {}), "");
}

TEST(Text, PrintableIsOneShortLineWhateverComesIn) {
  EXPECT_EQ(printable("layer1.0.weight"), "layer1.0.weight");
  EXPECT_EQ(printable("\xC3\xA9tui"), "\xC3\xA9tui");
  EXPECT_EQ(printable(std::string_view("a\nb\x1b[2J\x00\x7f", 9)), "a\\x0Ab\\x1B[2J\\x00\\x7F");
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_EQ(printable("a\xFF\xC3(\xE2\x82"), "a\\xFF\\xC3(\\xE2\\x82") << "not UTF-8";
  EXPECT_EQ(printable("a\xC2\x9B[2J"), "a\\xC2\\x9B[2J") << "a control character of two bytes";
  EXPECT_EQ(printable("ab\xC3\xA9tui", 3), "ab...") << "cut between two characters";
}

TEST(Text, MarksOfTheDirectionOfWritingAreEscaped) {
  EXPECT_EQ(printable("a\u202Egnp.exe"), "a\\xE2\\x80\\xAEgnp.exe");
  for (const char* mark :
       {"\u0085", "\u061C", "\u200E", "\u200F", "\u2028", "\u2029", "\u202A", "\u2066", "\u2069"})
    EXPECT_THAT(printable(mark), testing::StartsWith("\\x")) << mark;
  for (const char* letter : {"\u00A0", "\u061B", "\u061D", "\u200D", "\u2010", "\u202F", "\u2065",
                             "\u206A", "\u20AC", "\U0001F600"})
    EXPECT_EQ(printable(letter), letter);
}

TEST(Text, CellsOfCsvAreQuotedIfTheyNeedIt) {
  EXPECT_EQ(csv_cell("great white shark"), "great white shark");
  EXPECT_EQ(csv_cell("tench, Tinca tinca"), "\"tench, Tinca tinca\"");
  EXPECT_EQ(csv_cell("a \"b\""), "\"a \"\"b\"\"\"");
  EXPECT_EQ(csv_cell("a\nb"), "\"a\nb\"");
  EXPECT_EQ(csv_quoted("a"), "\"a\"");
}

TEST(Text, Base64IsThatOfItsStandard) {
  // The examples of RFC 4648, section 10.
  EXPECT_EQ(base64(""), "");
  EXPECT_EQ(base64("f"), "Zg==");
  EXPECT_EQ(base64("fo"), "Zm8=");
  EXPECT_EQ(base64("foo"), "Zm9v");
  EXPECT_EQ(base64("foobar"), "Zm9vYmFy");
  EXPECT_EQ(base64("\xFF\xFE\xFB"), "//77");
}

TEST(Text, PrintableLinesKeepLinesAndTabs) {
  EXPECT_EQ(printable_lines("a\n\t\xFF\xC3\xA9t\x1b[K\xF0\x90"),
            "a\n\t\\xFF\xC3\xA9t\\x1B[K\\xF0\\x90");
  EXPECT_EQ(printable_lines(std::string_view("\0\r", 2)), "\\x00\\x0D");
  EXPECT_EQ(printable_lines(""), "");
}

TEST(Text, DivisorsAndMultiplesNextToAValue) {
  EXPECT_EQ(largest_divisor(12, 5), 4);
  EXPECT_EQ(largest_divisor(12, 6), 6);
  EXPECT_EQ(largest_divisor(12, 100), 12);
  EXPECT_EQ(largest_divisor(12, 0), 1);
  EXPECT_EQ(nearest_divisors(5, 12), "4 or 6");
  EXPECT_EQ(nearest_divisors(6, 12), "6");
  EXPECT_EQ(nearest_divisors(24, 12), "12");
  EXPECT_EQ(nearest_multiples(500, 64), "448 or 512");
  EXPECT_EQ(nearest_multiples(10, 64), "64");
}

TEST(Text, OneIsNotMany) {
  EXPECT_EQ(counted(0, "step", "steps"), "0 steps");
  EXPECT_EQ(counted(1, "micro-batch", "micro-batches"), "1 micro-batch");
  EXPECT_EQ(counted(2, "micro-batch", "micro-batches"), "2 micro-batches");
}

TEST(Text, FlopsAndShortTimes) {
  EXPECT_EQ(format_flops(812), "812 FLOP");
  EXPECT_EQ(format_flops(1.2345e9), "1.234 GFLOP");
  EXPECT_EQ(format_flops(2e21), "2000 EFLOP");
  EXPECT_EQ(format_short_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_short_seconds(1.234), "1.23 s");
  EXPECT_EQ(format_short_seconds(125), "2:05");
}

TEST(Text, BytesAndSeconds) {
  EXPECT_EQ(format_bytes(812), "812 bytes");
  EXPECT_EQ(format_bytes(1), "1 byte");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024 * 1024), "1.5 GiB");
  EXPECT_EQ(format_seconds(125), "2:05");
  EXPECT_EQ(format_seconds(3725), "1:02:05");
  EXPECT_EQ(format_seconds(3 * 86400 + 4 * 3600 + 59), "3 d 4 h");
}

}  // namespace
}  // namespace trireme
