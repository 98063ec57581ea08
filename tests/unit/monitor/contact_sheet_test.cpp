// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/contact_sheet.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme::monitor {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(ContactSheet, TilesAreInRowsOfEightWithTheirImages) {
  ContactSheet sheet{.title = "t", .subtitle = "", .tiles = {}};
  sheet.tiles.assign(10, {.png = "foo", .lines = {"cat & dog", std::string(30, 'x')}});
  const std::string svg = to_svg(sheet);
  // The tenth tile is the second one of the second row.
  EXPECT_THAT(svg, HasSubstr("<image x=\"164.0\" y=\"238.0\" width=\"128\" height=\"128\" "
                             "style=\"image-rendering:pixelated\" "
                             "href=\"data:image/png;base64,Zm9v\"/>"));
  EXPECT_THAT(svg, HasSubstr("<title>cat &amp; dog; " + std::string(30, 'x') + "</title>"));
  EXPECT_THAT(svg, HasSubstr(">" + std::string(19, 'x') + "\xE2\x80\xA6</text>"));
  EXPECT_THAT(svg, Not(HasSubstr(">" + std::string(30, 'x') + "</text>")));
}

}  // namespace
}  // namespace trireme::monitor
