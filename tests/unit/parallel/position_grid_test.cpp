// SPDX-License-Identifier: Apache-2.0
#include "trireme/parallel/position_grid.hpp"

#include <gtest/gtest.h>

namespace trireme::parallel {
namespace {

/// Returns numbers that float32 has exactly.
std::vector<float> values_of(const PositionGrid& grid, std::int64_t width) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < grid.positions() * width; ++i)
    values.push_back(static_cast<float>(i * 37 % 101) / 64);
  return values;
}

/// Compares with numbers of timm 1.0.31 and PyTorch 2.15:
///   x = torch.tensor([i * 37 % 101 / 64 for i in range(n * width)]).reshape(1, n, width)
///   timm.layers.resample_abs_pos_embed(x, (to.height, to.width), (from.height, from.width),
///                                      num_prefix_tokens=leading)
void expect_interpolated(const PositionGrid& from, const PositionGrid& to, std::int64_t width,
                         const std::vector<float>& expected) {
  const std::vector<float> found = interpolate(values_of(from, width), from, to, width);
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6) << i;
}

TEST(PositionGrid, LargerGridsAreThoseOfPyTorch) {
  expect_interpolated({1, 3, 3}, {1, 5, 5}, 2,
                      {0,           0.578125,    1.16450465,   0.0364120454, 1.00358403,
                       0.604213595, 0.710790098, 1.40801871,   0.417996228,  1.11389148,
                       0.257075489, 0.826211512, 1.35970068,   0.206376746,  1.16866243,
                       0.457375854, 0.829990685, 0.854594171,  0.534032822,  0.96705395,
                       0.376276076, 0.996176183, 1.50058961,   0.500589609,  1.33966887,
                       0.269006491, 1.046875,    0.046875,     0.75408113,   0.778684855,
                       0.593160391, 1.29038906,  0.615541697,  0.722806931,  0.891325414,
                       0.457942337, 1.26375937,  0.193097115,  1.01684308,   0.96762073,
                       0.810044706, 1.51260638,  0.0113530913, 0.836674511,  0.573821664,
                       0.605091393, 1.38295984,  0.382959872,  1.16616118,   1.1147697,
                       0.929245234, 1.6264739});
}

TEST(PositionGrid, SmallerGridsAreThoseOfPyTorch) {
  expect_interpolated({0, 8, 8}, {0, 4, 4}, 1,
                      {0.722513139, 0.620395124, 0.796098351, 0.590713441, 0.819772005, 0.947516203,
                       0.833486319, 0.76335609, 0.627182961, 0.781323373, 0.693995178, 0.940715313,
                       1.03267801, 0.803519666, 0.796301007, 0.66781044});
}

TEST(PositionGrid, GridsThatAreNotSquareAreThoseOfPyTorch) {
  expect_interpolated(
      {1, 4, 4}, {1, 4, 6}, 1,
      {0,           0.540090561, 0.90900743,  1.06264472,  0.24985525,  0.403492689, 0.772409618,
       1.37828934,  0.807904422, 0.317527384, 0.776005626, 1.23069859,  1.50678456,  0.430715561,
       0.79963237,  0.95326966,  0.14048025,  0.294117659, 0.663034618, 1.26891434,  0.698529482,
       0.208152369, 0.666630626, 1.12132359,  1.39740956});
  expect_interpolated(
      {0, 5, 4}, {0, 3, 7}, 1,
      {0.2625525,  0.485993445, 0.862747908, 0.905498743, 0.7911641,   0.565756679, 0.437337577,
       1.16070938, 1.06130123,  0.876622558, 0.7578125,   0.639002323, 0.454323679, 0.354915679,
       1.07828736, 0.949868143, 0.724460721, 0.610126257, 0.652877092, 1.02963161,  1.25307226});
}

TEST(PositionGrid, TheSameGridKeepsEveryBit) {
  const PositionGrid grid{2, 3, 5};
  EXPECT_EQ(interpolate(values_of(grid, 3), grid, grid, 3), values_of(grid, 3));
}

TEST(PositionGrid, ASquareNeedsASquareNumberOfPositions) {
  EXPECT_EQ(square_grid(197, 1), (PositionGrid{1, 14, 14}));
  EXPECT_EQ(square_grid(1 << 20, 0), (PositionGrid{0, 1024, 1024}));
  EXPECT_FALSE(square_grid(1025 * 1025, 0));
  EXPECT_EQ(square_grid(196, 0), (PositionGrid{0, 14, 14}));
  for (const auto& [positions, leading] : {std::pair(196, 1), {24, 0}, {1, 1}, {0, 1}})
    EXPECT_FALSE(square_grid(positions, leading)) << positions;
}

}  // namespace
}  // namespace trireme::parallel
