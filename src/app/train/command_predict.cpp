// SPDX-License-Identifier: Apache-2.0
//
// `trireme predict`: the most probable classes of images, on one process.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "app/commands.hpp"
#include "app/files/weights_option.hpp"
#include "trireme/base/log.hpp"
#include "trireme/base/text.hpp"
#include "trireme/device/device.hpp"
#include "trireme/train/inference/predict.hpp"

namespace trireme::app {
namespace {

struct PredictOptions {
  train::PredictRequest request;
  bool json = false;
};

void print_classes(const std::string& image, const std::vector<train::ClassProbability>& classes) {
  fmt::print("{}\n", printable(image));
  for (const train::ClassProbability& one : classes)
    fmt::print("{:>9.3f} %  {}\n", 100 * one.probability, printable(one.name));
  std::fflush(stdout);
}

nlohmann::ordered_json to_json(const std::string& image,
                               const std::vector<train::ClassProbability>& classes) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const train::ClassProbability& one : classes)
    list.push_back({{"class", one.name}, {"label", one.label}, {"probability", one.probability}});
  return {{"image", image}, {"classes", list}};
}

ExitCode predict_command(const PredictOptions& options) {
  const KokkosScope kokkos;
  Log log;
  nlohmann::ordered_json images = nlohmann::ordered_json::array();
  train::predict(options.request, log, [&](const auto& image, const auto& classes) {
    if (options.json)
      images.push_back(to_json(image, classes));
    else
      print_classes(image, classes);
  });
  const nlohmann::ordered_json object = {{"checkpoint", options.request.checkpoint},
                                         {"images", images}};
  if (options.json)
    fmt::print("{}\n",
               object.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return ExitCode::done;
}

}  // namespace

void add_predict(CommandLine& line) {
  Command command = line.add("predict", "Classify JPEG and PNG files");
  const auto options = std::make_shared<PredictOptions>();
  train::PredictRequest& request = options->request;
  command.option("CHECKPOINT", request.checkpoint, "A checkpoint of a model of images").required();
  command.option("IMAGE", request.images, "JPEG and PNG files").required();
  command.option("--top", request.top, "The number of most probable classes")
      .range(1, std::int64_t{1} << 24)
      .default_shown();
  command.flag("--resize", request.resizes,
               "Scale images to cover the size of the model and cut out their center, for a model "
               "whose deck has no data.augment.evaluate");
  command.flag("--flip", request.flips, "Average the logits of each image and its mirror image");
  add_weights_option(command, request.weights, "the average where the checkpoint has one");
  command.flag("--json", options->json, "As one JSON object");
  command.footer(
      "Example:\n  trireme predict runs/photos/checkpoints/best.h5 cat.jpg holiday/*.jpg");
  command.set_single_rank_action([options] { return predict_command(*options); });
}

}  // namespace trireme::app
