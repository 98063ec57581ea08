// SPDX-License-Identifier: Apache-2.0
#include "worst_sheet.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>

#include "trireme/data/images/image.hpp"
#include "trireme/monitor/contact_sheet.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::app {
namespace {

/// Reads a sample as float32 [height, width, channels], from 0 to 1 in its own range.
std::vector<float> read_values(const data::Dataset& dataset, std::int64_t sample) {
  const data::SampleInfo& info = dataset.sample();
  const Shape rows{1, info.input[0], info.input[1], info.input[2]};
  std::vector<std::byte> stored(static_cast<std::size_t>(info.input_bytes()));
  dataset.read(sample, stored.data(), nullptr);
  std::vector<float> values(static_cast<std::size_t>(rows.elements()));
  Arena workspace({}, "workspace", 0), library({}, "library", 0);
  ops::Context context({}, workspace, library);
  const ops::ImageTransform as_it_is;
  ops::prepare_images(context, {}, {stored.data(), info.dtype, DeviceKind::cpu, rows}, &as_it_is,
                      {values.data(), DType::float32, DeviceKind::cpu, rows});
  return values;
}

std::string png_of(const data::Dataset& dataset, std::int64_t sample) {
  const std::vector<float> values = read_values(dataset, sample);
  const Shape& shape = dataset.sample().input;
  data::Image image;
  image.height = shape[0];
  image.width = shape[1];
  image.channels = shape[2] == 3 ? 3 : 1;
  for (std::size_t pixel = 0; pixel < values.size(); pixel += static_cast<std::size_t>(shape[2]))
    for (std::size_t c = 0; c < static_cast<std::size_t>(image.channels); ++c)
      image.pixels.push_back(
          static_cast<std::byte>(std::lround(std::clamp(values[pixel + c], 0.0f, 1.0f) * 255)));
  const std::vector<std::byte> png = data::encode_png(image);
  return {reinterpret_cast<const char*>(png.data()), png.size()};
}

}  // namespace

std::string draw_worst(const std::string& title, const data::Dataset& dataset,
                       std::span<const train::SampleResult> results,
                       const std::vector<std::string>& names) {
  monitor::ContactSheet sheet{
      .title = title,
      .subtitle = "largest losses first: true class, probability and name of the predicted class",
      .tiles = {}};
  for (const train::SampleResult& result : results)
    sheet.tiles.push_back(
        {png_of(dataset, result.sample),
         {"true: " + names[static_cast<std::size_t>(result.label)],
          result.predicted < 0 ? "no class: NaN"
                               : fmt::format("{:.1f} % {}", 100 * result.probability,
                                             names[static_cast<std::size_t>(result.predicted)]),
          fmt::format("loss {:.3f}", result.loss), fmt::format("sample {}", result.sample)}});
  return monitor::to_svg(sheet);
}

}  // namespace trireme::app
