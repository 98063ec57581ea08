// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/heat_map.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::monitor {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(HeatMap, CellsHaveTheirPlaceAndTheirPartOfTheRow) {
  const std::string svg = to_svg({.title = "t",
                                  .subtitle = "",
                                  .row_label = "true",
                                  .column_label = "predicted",
                                  .names = {"a<b", "c"},
                                  .cells = {{0, 0, 3}, {0, 1, 1}, {1, 1, 7}, {1, 0, 0}}});
  EXPECT_THAT(svg, HasSubstr("<title>a&lt;b, c: 1</title>\n<rect x=\"103.5\" y=\"113.5\" "
                             "width=\"33.0\" height=\"33.0\" class=\"c1\" fill-opacity=\"0.56\""));
  EXPECT_THAT(svg, HasSubstr("<title>c, c: 7</title>\n<rect x=\"103.5\" y=\"147.5\" width=\"33.0\" "
                             "height=\"33.0\" class=\"c0\" fill-opacity=\"1.00\""));
  EXPECT_THAT(svg, Not(HasSubstr(": 0</title>")));
  EXPECT_THAT(svg, HasSubstr(">7</text>"));
}

TEST(HeatMap, LargeOnesHaveNoCountsAndShortNames) {
  HeatMap map{
      .title = "t", .subtitle = "", .row_label = "", .column_label = "", .names = {}, .cells = {}};
  map.names.assign(21, std::string(23, 'x') + "\xC3\xA4yz");
  map.cells = {{20, 0, 345}};
  const std::string svg = to_svg(map);
  EXPECT_THAT(svg, HasSubstr(">" + std::string(23, 'x') + "\xC3\xA4\xE2\x80\xA6</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">345</text>")));
  EXPECT_THAT(svg, HasSubstr(": 345</title>"));
}

}  // namespace
}  // namespace trireme::monitor
