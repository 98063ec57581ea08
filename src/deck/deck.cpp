#include "trireme/deck/deck.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "contradictions.hpp"
#include "limits.hpp"
#include "reader.hpp"
#include "tables.hpp"
#include "trireme/base/check.hpp"

namespace trireme::deck {

Deck parse(const std::string& text, const std::string& file, const std::vector<Override>& overrides) {
  Reader reader(text, file, overrides);
  Deck deck;
  deck.checkpoint.best = "top1";
  visit(reader, deck);
  if (deck.run.folder.empty()) deck.run.folder = "runs/" + deck.run.name;
  if (deck.data.validation.empty() && !reader.given("checkpoint.best")) deck.checkpoint.best.clear();
  find_contradictions(deck, reader);
  reader.finish();
  deck.places = reader.places();
  return deck;
}

std::string placed(const Deck& deck, const std::string& message) {
  const std::string key = message.substr(0, message.find(' '));
  const auto found = deck.places.find(key);
  return found == deck.places.end() ? message : found->second + ": " + message;
}

std::string read_file(const std::string& path) {
  std::error_code unreadable;  // the opening below says why
  validate(!std::filesystem::is_directory(path, unreadable), "{}: is a folder; give the deck's file", path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  validate(file.good(), "{}: cannot be read: {}", path, std::strerror(errno));
  std::string text(most_deck_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  validate(!file.bad(), "{}: cannot be read: {}", path, std::strerror(errno));
  text.resize(static_cast<std::size_t>(file.gcount()));
  validate(text.size() <= most_deck_bytes, "{}: is longer than {} bytes, so it is no deck; give a text file in TOML", path, most_deck_bytes);
  return text;
}

}  // namespace trireme::deck
