// SPDX-License-Identifier: Apache-2.0
//
// Plots: the curve reaches the corners of its panel, ticks are round, texts are escaped.
#include "trireme/monitor/plot.hpp"

#include <cmath>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::monitor {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(Plot, ACurveFillsItsPanelAndTicksAreRound) {
  const std::string svg = to_svg({.title = "a <b> & \"c\"",
                                  .subtitle = "below",
                                  .x_label = "epochs",
                                  .panels = {{"rate", {{0, 0}, {10, 0.4}}}}});
  EXPECT_THAT(svg, StartsWith("<svg "));
  EXPECT_THAT(svg, HasSubstr("points=\"76.0,254.0 736.0,78.0\""));
  EXPECT_THAT(svg, HasSubstr(">a &lt;b&gt; &amp; &quot;c&quot;</text>"));
  for (const char* tick : {">0.1<", ">0.2<", ">0.3<", ">0.4<", ">2<", ">8<", ">10<"})
    EXPECT_THAT(svg, HasSubstr(tick));
}

TEST(Plot, CharactersThatXmlDoesNotAllowAreEscaped) {
  const std::string svg = to_svg({.title = "a\x01"
                                           "b\n\x1B[1m \xFF \xEF\xBF\xBF \xC3\xA4",
                                  .subtitle = "",
                                  .x_label = "\t",
                                  .panels = {{"\x7F", {{0, 0}, {10, 0.4}}}}});
  EXPECT_THAT(svg, HasSubstr(">a\\x01b\\x0A\\x1B[1m \\xFF \\uFFFF \xC3\xA4</text>"));
  EXPECT_THAT(svg, HasSubstr("aria-label=\"a\\x01b"));
  for (const char c : svg) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n');
}

TEST(Plot, ValuesThatAreNotFiniteAreLeftOut) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::string svg =
      to_svg({.title = "t",
              .subtitle = "",
              .x_label = "",
              .panels = {{"loss", {{1e-3, 2}, {1e-2, nan}, {1e-1, 1}}, {{1e-3, 2}, {1e-1, 1.5}}}},
              .log_x = true,
              .mark = 1e-2,
              .mark_label = "here"});
  EXPECT_THAT(svg, HasSubstr("points=\"76.0,78.0 736.0,254.0\""));
  EXPECT_THAT(svg, HasSubstr("<line x1=\"406.0\"")) << "the mark is in the middle of two decades";
  EXPECT_THAT(svg, HasSubstr(">here</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(Plot, LargeValuesAreDrawnAtTheUpperBorder) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string svg =
      to_svg({.title = "t",
              .subtitle = "",
              .x_label = "",
              .panels = {{.label = "loss",
                          .points = {{0, 1}, {5, 0}, {10, 1000}, {11, infinity}},
                          .emphasis = {{0, 1}, {10, 50}},
                          .max_y = 2}}});
  EXPECT_THAT(svg, HasSubstr("points=\"76.0,166.0 376.0,254.0 676.0,78.0\""));
  EXPECT_THAT(svg, HasSubstr("points=\"76.0,166.0 676.0,78.0\""));
  EXPECT_THAT(svg, AllOf(HasSubstr(">2<"), Not(HasSubstr(">1000<"))));
}

TEST(Plot, AShortLogarithmicAxisHasLabels) {
  const std::string svg = to_svg({.title = "t",
                                  .subtitle = "",
                                  .x_label = "",
                                  .panels = {{"loss", {{2e-3, 2}, {8e-3, 1}}}},
                                  .log_x = true});
  EXPECT_THAT(svg, AllOf(HasSubstr(">0.002<"), HasSubstr(">0.005<")));
}

TEST(Plot, APanelWithoutARangeIsDrawn) {
  for (const PlotPanel& panel : {PlotPanel{"empty", {}}, PlotPanel{"one", {{3, 0}}},
                                 PlotPanel{"constant", {{0, 0.9}, {1, 0.9}}},
                                 // differences that rounding makes: a tick more is the same number
                                 PlotPanel{"rounded", {{0, 1.6}, {1, std::nextafter(1.6, 2)}}}}) {
    const std::string svg =
        to_svg({.title = "t", .subtitle = "", .x_label = "", .panels = {panel}});
    EXPECT_THAT(svg, Not(AnyOf(HasSubstr("nan"), HasSubstr("inf"))));
    EXPECT_THAT(svg, HasSubstr(panel.label));
  }
}

}  // namespace
}  // namespace trireme::monitor
