// SPDX-License-Identifier: Apache-2.0
//
// Tests train::RequestReport (src/train/supervision/request_report.hpp): the lines about
// outstanding requests in a report of a hang, also if messages with them are lost or repeated.
#include "train/supervision/request_report.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace trireme::train {
namespace {

TEST(RequestReport, ListsAllRequests) {
  const RequestReport report(std::vector<std::string>{"send 4", "receive 5"});
  EXPECT_TRUE(report.is_complete());
  EXPECT_EQ(report.lines(3, "node1"),
            (std::vector<std::string>{"rank 3 on node1: request 1 of 2: send 4",
                                      "rank 3 on node1: request 2 of 2: receive 5"}));
}

TEST(RequestReport, DistinguishesNoRequestFromNoAnswer) {
  RequestReport report;
  EXPECT_FALSE(report.is_complete());
  EXPECT_EQ(report.lines(0, "n").front(), "rank 0 on n: outstanding requests unknown, no answer");
  report.add(0, 0, "");
  EXPECT_TRUE(report.is_complete());
  EXPECT_EQ(report.lines(0, "n").front(), "rank 0 on n: no outstanding requests");
}

TEST(RequestReport, IsCompleteOnceEveryMessageArrived) {
  RequestReport report;
  report.add(2, 1, "second");
  report.add(2, 1, "second");
  EXPECT_FALSE(report.is_complete());
  EXPECT_EQ(report.lines(0, "n"),
            (std::vector<std::string>{"rank 0 on n: request 2 of 2: second",
                                      "rank 0 on n: not listed: 1 of 2 requests"}));
  report.add(2, 0, "first");
  EXPECT_TRUE(report.is_complete());
  EXPECT_EQ(report.lines(0, "n").front(), "rank 0 on n: request 1 of 2: first");
}

TEST(RequestReport, ListsTheOldestOfManyAndCountsTheRest) {
  const int many = 600;
  std::vector<std::string> requests;
  for (int i = 0; i < many; ++i) requests.push_back(std::to_string(i));
  const RequestReport report(requests);
  EXPECT_TRUE(report.is_complete());
  EXPECT_EQ(report.count(), many);
  const std::vector<std::string> lines = report.lines(0, "n");
  const int listed = static_cast<int>(report.oldest().size());
  EXPECT_LT(listed, many / 4);
  ASSERT_EQ(std::ssize(lines), listed + 1);
  EXPECT_EQ(lines.front(), "rank 0 on n: request 1 of 600: 0");
  EXPECT_EQ(lines.back(),
            "rank 0 on n: not listed: " + std::to_string(many - listed) + " of 600 requests");
}

}  // namespace
}  // namespace trireme::train
