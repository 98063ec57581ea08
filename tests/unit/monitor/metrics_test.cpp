// SPDX-License-Identifier: Apache-2.0
//
// metrics.jsonl: form of a row, appending across starts, incomplete last lines, a full disk.

#include "trireme/monitor/metrics.hpp"

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"
#include "trireme/base/check.hpp"

namespace trireme::monitor {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Metrics, RowIsReadBackByAnyJsonReader) {
  const double loss = 0.1 + 0.2;  // has no short decimal form
  const std::int64_t bytes = std::numeric_limits<std::int64_t>::max();
  MetricsRow row("train");
  row.add("loss", loss)
      .add("memory_bytes", bytes)
      .add("skipped", true)
      .add("detail", "a \"quoted\"\nname \xC3\xA9")
      .add("split", std::string("test"));
  const std::string line = row.line();
  EXPECT_EQ(line.back(), '\n');
  EXPECT_EQ(line.find('\n'), line.size() - 1) << "a row is one line";
  const auto json = nlohmann::ordered_json::parse(line);
  EXPECT_EQ(json["kind"], "train");
  EXPECT_EQ(json["loss"].get<double>(), loss) << "the very same double";
  EXPECT_EQ(json["memory_bytes"].get<std::int64_t>(), bytes);
  EXPECT_EQ(json["skipped"], true);
  EXPECT_EQ(json["detail"], "a \"quoted\"\nname \xC3\xA9");
  EXPECT_EQ(json.begin().key(), "kind");
  EXPECT_EQ(std::prev(json.end()).key(), "split") << "keys in order";
}

TEST(Metrics, NonFiniteNumbersAreNull) {
  MetricsRow row("train");
  row.add("loss", std::nan(""))
      .add("grad_norm", std::numeric_limits<double>::infinity())
      .add("rate", -std::numeric_limits<double>::infinity());
  const auto json = nlohmann::json::parse(row.line());
  EXPECT_TRUE(json["loss"].is_null());
  EXPECT_TRUE(json["grad_norm"].is_null());
  EXPECT_TRUE(json["rate"].is_null());
}

TEST(Metrics, BytesThatAreNoTextDoNotSpoilTheFile) {
  EXPECT_TRUE(nlohmann::json::accept(MetricsRow("event").add("detail", "\xFF\xFE").line()));
}

TEST(Metrics, AppendsAcrossStarts) {
  const ScratchFolder folder;
  const std::string path = folder / "metrics.jsonl";
  std::string expected;
  for (std::int64_t start = 0; start < 3; ++start) {
    Metrics metrics(path);
    MetricsRow row("event");
    row.add("step", start);
    metrics.write(row);
    expected += row.line();
  }
  EXPECT_EQ(contents(path), expected);
}

TEST(Metrics, TornLastLineIsCut) {
  const ScratchFolder folder;
  const std::string path = folder / "metrics.jsonl";
  MetricsRow row("event");
  row.add("step", std::int64_t{3});
  // Lengths around the block size of the backward search (4096 bytes), with and without a complete
  // line before.
  for (const std::size_t torn : {1u, 4095u, 4096u, 4097u, 10000u}) {
    for (const std::string& whole : {std::string(), std::string("{\"kind\": \"train\"}\n")}) {
      write_text(path, whole + std::string(torn, 'x'));
      Metrics(path).write(row);
      EXPECT_EQ(contents(path), whole + row.line()) << torn;
    }
  }
}

TEST(Metrics, RowsOfAFullDiskAreWrittenLater) {
  const ScratchFolder folder;
  const std::string path = folder / "metrics.jsonl";
  // With SIGXFSZ ignored, a write beyond the limit fails after the part that fits, as on a full
  // disk.
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto limit = [&](rlim_t bytes) {
    const rlimit now{bytes, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &now), 0);
  };
  Metrics metrics(path);
  MetricsRow row("event");
  row.add("detail", "twenty and more bytes");
  std::string expected;
  for (const rlim_t bytes : {rlim_t{20}, rlim_t{30}, before.rlim_cur, rlim_t{5}, before.rlim_cur}) {
    limit(bytes);
    metrics.write(row);
    metrics.write(row);
    expected += row.line() + row.line();
    limit(before.rlim_cur);
    EXPECT_EQ(metrics.write_error().empty(), bytes == before.rlim_cur) << metrics.write_error();
    if (bytes == before.rlim_cur) {
      EXPECT_EQ(contents(path), expected);
    }
  }
  std::signal(SIGXFSZ, handler);
}

TEST(Metrics, DefaultMadeWritesNothingAndMovesKeepTheFile) {
  const ScratchFolder folder;
  Metrics none;
  none.write(MetricsRow("event"));
  Metrics first(folder / "metrics.jsonl");
  none = std::move(first);
  none.write(MetricsRow("event"));
  EXPECT_EQ(contents(folder / "metrics.jsonl"), MetricsRow("event").line());
}

TEST(Metrics, NamesTheFileThatCannotBeOpened) {
  const ScratchFolder folder;
  EXPECT_THAT([&] { Metrics metrics(folder / "missing/metrics.jsonl"); },
              ThrowsMessage<InputError>(HasSubstr("missing/metrics.jsonl")));
}

std::vector<std::string> kinds_in(const std::string& path, std::string* skipped = nullptr) {
  std::vector<std::string> kinds;
  MetricsReader row(path, {"kind"});
  while (row.next()) kinds.push_back(row["kind"].is_null() ? "" : row["kind"]);
  if (skipped != nullptr) *skipped = row.skipped();
  return kinds;
}

TEST(MetricsReader, SkipsOnlyLinesThatCannotBeRead) {
  const ScratchFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string deep = "{\"kind\":" + std::string(100'000, '[') + "\n";
  const std::string too_long = "{\"kind\": \"" + std::string((1 << 20) + 1, 'x') + "\"}\n";
  const std::string longest = "{\"kind\": \"" + std::string((1 << 20) - 12, 'x') + "\"}\n";
  write_text(path, MetricsRow("first").line() + deep + MetricsRow("second").line() + too_long +
                       "[]\n\n{\"kind\"}\n" + MetricsRow("third").line() + longest +
                       "{\"kind\": \"cut");
  std::string skipped;
  const std::vector<std::string> kinds = kinds_in(path, &skipped);
  ASSERT_EQ(kinds.size(), 4u);
  EXPECT_EQ(kinds[0] + kinds[1] + kinds[2], "firstsecondthird");
  EXPECT_EQ(skipped, "4 lines cannot be read; line 2: is nested more than 8 levels deep");
}

TEST(MetricsReader, ReadsTheAskedMembersOfEachRow) {
  const ScratchFolder folder;
  const std::string path = folder / "metrics.jsonl";
  const std::string train =
      MetricsRow("train").add("loss", std::nan("")).add("step", std::int64_t{7}).line();
  const std::string event =
      MetricsRow("event").add("detail", "\"\n").add("step", std::int64_t{1} << 62).line();
  const std::string other = R"({"s\u0074ep": 1e2, "detail": {"step": [3]}, "kind": 5})";
  write_text(path, train + event + other + "\n{\"kind\": \"no newline\"}");
  MetricsReader row(path, {"step", "kind", "detail", "loss"});
  ASSERT_TRUE(row.next());
  EXPECT_EQ(row.line() + "\n", train);
  EXPECT_EQ(row["kind"], "train");
  EXPECT_EQ(row["step"], 7);
  EXPECT_TRUE(row["loss"].is_null() && row["detail"].is_null())
      << "NaN is null, as what is missing";
  ASSERT_TRUE(row.next());
  EXPECT_EQ(row["detail"], "\"\n");
  EXPECT_EQ(row["step"], std::int64_t{1} << 62);
  ASSERT_TRUE(row.next());
  EXPECT_EQ(row["step"], 100);
  EXPECT_EQ(row["detail"].dump(), R"({"step":[3]})");
  EXPECT_EQ(row["kind"], 5);
  EXPECT_FALSE(row.next());
  EXPECT_FALSE(row.next());
  EXPECT_EQ(row.skipped(), "");
}

TEST(MetricsReader, StopsAtAFileOfDamagedLines) {
  const ScratchFolder folder;
  std::string text = MetricsRow("first").line();
  for (int i = 0; i < 100'001; ++i) text += "x\n";
  write_text(folder / "metrics.jsonl", text + MetricsRow("last").line());
  std::string skipped;
  EXPECT_EQ(kinds_in(folder / "metrics.jsonl", &skipped), std::vector<std::string>{"first"});
  EXPECT_EQ(skipped,
            "100000 lines cannot be read; line 2: is not JSON: it is wrong at byte 1; lines after "
            "these are not read");
}

TEST(MetricsReader, OfEndlessLinesTakesNeitherMemoryNorTime) {
  const ScratchFolder folder;
  const std::string path = folder / "metrics.jsonl";
  write_text(path, MetricsRow("first").line());
  ASSERT_EQ(::truncate(path.c_str(), off_t{1} << 40), 0);
  EXPECT_EQ(kinds_in(path), std::vector<std::string>{"first"});
  std::ofstream(path, std::ios::app) << "\n" << MetricsRow("second").line();
  EXPECT_EQ(kinds_in(path), (std::vector<std::string>{"first", "second"}));
}

TEST(MetricsReader, OpensNeitherLinksNorPipes) {
  const ScratchFolder folder;
  EXPECT_TRUE(kinds_in(folder / "missing").empty());
  write_text(folder / "other", "precious without an end");
  std::filesystem::create_symlink(folder / "other", folder / "link");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {"link", "pipe"}) {
    EXPECT_THROW(kinds_in(folder / name), InputError) << name;
    EXPECT_THROW(Metrics(folder / name), InputError) << name;
  }
  EXPECT_EQ(contents(folder / "other"), "precious without an end");
}

TEST(Metrics, AreOpenedAnewWhenTheFileIsRemovedOrReplaced) {
  const ScratchFolder folder;
  const std::string path = folder / "metrics.jsonl";
  Metrics metrics(path);
  const auto text = [&] {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto write = [&](std::int64_t step) {
    MetricsRow row("train");
    metrics.write(row.add("step", step));
  };
  write(1);
  EXPECT_FALSE(metrics.reopen_if_removed());
  std::filesystem::remove(path);
  write(2);
  EXPECT_TRUE(metrics.reopen_if_removed());
  write(3);
  EXPECT_EQ(text(), "{\"kind\": \"train\", \"step\": 3}\n");
  // Another file with an incomplete line takes its place.
  std::ofstream(path + ".new") << "a\nb";
  std::filesystem::rename(path + ".new", path);
  EXPECT_TRUE(metrics.reopen_if_removed());
  write(4);
  EXPECT_EQ(text(), "a\n{\"kind\": \"train\", \"step\": 4}\n");
  EXPECT_FALSE(metrics.reopen_if_removed());
  EXPECT_FALSE(Metrics().reopen_if_removed());
  std::filesystem::remove_all(folder.path());
  EXPECT_THROW(metrics.reopen_if_removed(), InputError);
  EXPECT_FALSE(std::filesystem::exists(folder.path())) << "no folder is made";
}

}  // namespace
}  // namespace trireme::monitor
