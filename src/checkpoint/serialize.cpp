// SPDX-License-Identifier: Apache-2.0
//
// Serializes Info and Contents as CBOR, to broadcast them from rank 0.
#include "serialize.hpp"

#include <nlohmann/json.hpp>

namespace trireme::checkpoint {
namespace {

std::string to_cbor(const nlohmann::json& json) {
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}

// CBOR keeps infinities, NaN and 64-bit integers exactly; JSON text does not.
nlohmann::json to_json(const Info& info) {
  nlohmann::json json{{"step", info.step},
                      {"epoch", info.epoch},
                      {"epoch_samples", info.epoch_samples},
                      {"samples", info.samples},
                      {"updates", info.updates},
                      {"updates_before", info.updates_before},
                      {"deck", info.deck},
                      {"classes", info.classes},
                      {"state", nlohmann::json::object()},
                      {"written_by", info.written_by}};
  // The index of the variant is stored beside each value: CBOR alone would not keep the type.
  for (const auto& [key, value] : info.state) {
    json["state"][key] = std::visit(
        [&](const auto& held) { return nlohmann::json::array({value.index(), held}); }, value);
  }
  return json;
}

Info info_from_json(const nlohmann::json& json) {
  Info info;
  info.step = json["step"];
  info.epoch = json["epoch"];
  info.epoch_samples = json["epoch_samples"];
  info.samples = json["samples"];
  info.updates = json["updates"];
  info.updates_before = json["updates_before"].get<std::map<std::string, std::int64_t>>();
  info.deck = json["deck"];
  info.written_by = json["written_by"];
  info.classes = json["classes"].get<std::vector<std::string>>();
  for (const auto& [key, held] : json["state"].items()) {
    switch (held[0].get<int>()) {
      case 0: info.state[key] = held[1].get<std::int64_t>(); break;
      case 1: info.state[key] = held[1].get<std::uint64_t>(); break;
      case 2: info.state[key] = held[1].get<double>(); break;
      default: info.state[key] = held[1].get<std::string>();
    }
  }
  return info;
}

}  // namespace

std::string to_bytes(const Info& info) { return to_cbor(to_json(info)); }
Info info_from_bytes(const std::string& bytes) {
  return info_from_json(nlohmann::json::from_cbor(bytes));
}

std::string to_bytes(const Contents& contents) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const Contents::Entry& entry : contents.tensors)
    tensors.push_back({entry.path,
                       std::vector<std::int64_t>(entry.shape.begin(), entry.shape.end()),
                       entry.digest, entry.has_digest});
  return to_cbor(
      {{"info", to_json(contents.info)}, {"tensors", tensors}, {"sealed", contents.sealed}});
}

Contents contents_from_bytes(const std::string& bytes) {
  const nlohmann::json json = nlohmann::json::from_cbor(bytes);
  Contents contents{
      .info = info_from_json(json["info"]), .tensors = {}, .sealed = json["sealed"], .index = {}};
  for (const nlohmann::json& entry : json["tensors"]) {
    Shape shape;
    for (const std::int64_t extent : entry[1]) shape.push_back(extent);
    contents.tensors.push_back(
        {.path = entry[0], .shape = shape, .digest = entry[2], .has_digest = entry[3]});
  }
  return contents;
}

Contents broadcast_contents(const comm::Communicator& world, Contents contents) {
  Contents received = contents_from_bytes(world.broadcast(to_bytes(contents), 0));
  received.index = std::move(contents.index);
  return received;
}

}  // namespace trireme::checkpoint
