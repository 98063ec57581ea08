// SPDX-License-Identifier: Apache-2.0
//
// The file of monitor.prometheus: its figures, labels and counters, and the files that it replaces.
#include "trireme/monitor/prometheus.hpp"

#include <cmath>
#include <filesystem>
#include <string_view>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scratch_folder.hpp"
#include "trireme/base/answer.hpp"
#include "trireme/base/error.hpp"

namespace trireme::monitor {
namespace {

using testing::HasSubstr;
using testing::Not;

MetricsRow train(std::int64_t step, double loss) {
  MetricsRow row("train");
  row.add("step", step).add("samples", 64 * step).add("loss", loss).add("forward_s", 0.25);
  return row.add("gpu_util", 50.0).add("skipped", std::int64_t{1});
}

class PrometheusFile : public testing::Test {
 protected:
  std::string text() const { return contents(path); }
  ScratchFolder scratch;
  std::string path = scratch.path() + "/run.prom";
};

TEST_F(PrometheusFile, HasTheLatestFiguresInBaseUnits) {
  Prometheus file(path, "fashion", "slurm 4711");
  EXPECT_THAT(text(), HasSubstr("trireme_up{run=\"fashion\",batch_job=\"slurm 4711\"} 1\n"));
  file.add(train(10, 2.5));
  file.add(train(20, 1.5));
  file.end();
  EXPECT_THAT(text(), HasSubstr("trireme_up{run=\"fashion\",batch_job=\"slurm 4711\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("# TYPE trireme_loss gauge\n"
                                "trireme_loss{run=\"fashion\",batch_job=\"slurm 4711\"} 1.5\n"));
  EXPECT_THAT(text(), HasSubstr("part=\"forward\"} 0.25\n"));
  EXPECT_THAT(text(), HasSubstr("trireme_gpu_utilization_ratio{run=\"fashion\",batch_job=\"slurm "
                                "4711\"} 0.5\n"));
  EXPECT_THAT(text(), Not(HasSubstr("mfu")));
}

TEST_F(PrometheusFile, CountersDoNotDecreaseAtARollback) {
  Prometheus file(path, "a", "");
  for (const std::int64_t step : {10, 20, 5, 15}) file.add(train(step, 1));
  file.end();
  EXPECT_THAT(text(), HasSubstr("# TYPE trireme_steps_total counter\n"
                                "trireme_steps_total{run=\"a\"} 20\n"));
  EXPECT_THAT(text(), HasSubstr("trireme_step{run=\"a\"} 15\n"));
  EXPECT_THAT(text(), HasSubstr("trireme_skipped_steps_total{run=\"a\"} 4\n"));
}

TEST_F(PrometheusFile, EventsAndSetsAreLabels) {
  Prometheus file(path, "a\"b\\\n", "");
  for (const char* const event : {"restart", "rollback", "restart"})
    file.add(MetricsRow("event").add("step", std::int64_t{1}).add("event", event));
  file.add(MetricsRow("evaluate").add("split", "test").add("loss", 0.5));
  file.end();
  EXPECT_THAT(text(), HasSubstr("run=\"a\\\"b\\\\\\\\x0A\""));
  EXPECT_THAT(text(), HasSubstr(",event=\"restart\"} 2\n"));
  EXPECT_THAT(text(), HasSubstr(",event=\"rollback\"} 1\n"));
  EXPECT_THAT(text(), HasSubstr(",split=\"test\"} 0.5\n"));
}

TEST_F(PrometheusFile, HasEachMetricOfEachAnswer) {
  for (const Answer& answer : answers())
    for (const std::string_view metric : answer.metrics) {
      Prometheus file(path, "a", "");
      file.add(MetricsRow("evaluate").add("split", "test").add(std::string(metric), 0.375));
      file.end();
      EXPECT_THAT(text(), HasSubstr(fmt::format("trireme_evaluation_{}", metric))) << answer.word;
      EXPECT_THAT(text(), HasSubstr(",split=\"test\"} 0.375\n")) << answer.word << ' ' << metric;
    }
}

TEST_F(PrometheusFile, IsWrittenAtMostOnceASecondAndAtTheEnd) {
  Prometheus file(path, "a", "");
  const std::string before = text();
  const double now = monotonic_seconds();
  file.add(train(1, 1), now);
  file.add(train(2, 1), now + 0.9);
  EXPECT_EQ(text(), before);
  file.add(train(3, 1), now + 1.1);
  EXPECT_THAT(text(), HasSubstr("trireme_step{run=\"a\"} 3\n"));
  file.add(train(4, 1), now + 1.2);
  file.end();
  EXPECT_THAT(text(), HasSubstr("trireme_up{run=\"a\"} 0\n"));
  EXPECT_THAT(text(), HasSubstr("trireme_step{run=\"a\"} 4\n"));
  file.add(train(5, 1), now + 9);
  EXPECT_THAT(text(), HasSubstr("trireme_step{run=\"a\"} 4\n"));
}

TEST_F(PrometheusFile, ALossThatIsNotFiniteIsNaNAndAFigureThatIsGoneIsAbsent) {
  Prometheus file(path, "a", "");
  file.add(train(1, 2.5));
  file.add(MetricsRow("train").add("step", std::int64_t{2}).add("loss", std::nan("")));
  file.end();
  EXPECT_THAT(text(), HasSubstr("trireme_loss{run=\"a\"} nan\n"));
  EXPECT_THAT(text(), Not(HasSubstr("gpu_utilization")));
  EXPECT_THAT(text(), Not(HasSubstr("part=\"forward\"")));
}

TEST_F(PrometheusFile, EnergyDoesNotDecrease) {
  Prometheus file(path, "a", "");
  for (const double joules : {80.0, 70.0, 75.0})
    file.add(MetricsRow("account").add("gpu_energy_j", joules));
  file.end();
  EXPECT_THAT(text(), HasSubstr("trireme_gpu_energy_joules_total{run=\"a\"} 80\n"));
}

TEST_F(PrometheusFile, AFolderThatIsGoneIsATroubleAndNoError) {
  std::filesystem::create_directory(scratch.path() + "/sub");
  Prometheus file(scratch.path() + "/sub/run.prom", "a", "");
  EXPECT_EQ(file.trouble(), "");
  std::filesystem::remove_all(scratch.path() + "/sub");
  file.end();
  EXPECT_THAT(file.trouble(), HasSubstr("run.prom.tmp"));
}

TEST_F(PrometheusFile, OtherFilesAreRefused) {
  Prometheus::validate(path);
  EXPECT_FALSE(std::filesystem::exists(path));
  {
    Prometheus file(path, "a", "");
  }
  Prometheus::validate(path);
  const auto error_of = [](const std::string& wrong) -> std::string {
    try {
      Prometheus::validate(wrong);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  write_text(path, "# HELP node_load1 of another program\n");
  EXPECT_THAT(error_of(path), HasSubstr("is no file of this kind"));
  EXPECT_THAT(error_of(scratch.path() + "/none/run.prom"), HasSubstr("there is no folder"));
  std::filesystem::create_symlink("/etc/passwd", scratch.path() + "/link.prom");
  EXPECT_THAT(error_of(scratch.path() + "/link.prom"), HasSubstr("is no file of this kind"));
}

}  // namespace
}  // namespace trireme::monitor
