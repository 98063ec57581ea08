#include "info_text.hpp"

#include <nlohmann/json.hpp>

namespace trireme::checkpoint {

// CBOR, since it holds numbers that are not finite and 64-bit integers as they are.
std::string to_bytes(const Info& info) {
  nlohmann::json json{
      {"step", info.step}, {"epoch", info.epoch},     {"epoch_samples", info.epoch_samples}, {"samples", info.samples}, {"updates", info.updates},
      {"deck", info.deck}, {"classes", info.classes}, {"state", nlohmann::json::object()}};
  for (const auto& [key, value] : info.state) {
    json["state"][key] = std::visit([&](const auto& held) { return nlohmann::json::array({value.index(), held}); }, value);
  }
  const std::vector<std::uint8_t> bytes = nlohmann::json::to_cbor(json);
  return {bytes.begin(), bytes.end()};
}

Info info_of_bytes(const std::string& bytes) {
  const nlohmann::json json = nlohmann::json::from_cbor(bytes);
  Info info;
  info.step = json["step"];
  info.epoch = json["epoch"];
  info.epoch_samples = json["epoch_samples"];
  info.samples = json["samples"];
  info.updates = json["updates"];
  info.deck = json["deck"];
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

}  // namespace trireme::checkpoint
