#include "trireme/deck/deck.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "contradictions.hpp"
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
  return deck;
}

std::string read_file(const std::string& path) {
  validate(!std::filesystem::is_directory(path), "{}: is a folder; give the deck's file", path);
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  validate(file.good(), "{}: cannot be read: {}", path, std::strerror(errno));
  std::string text{std::istreambuf_iterator<char>(file), {}};
  validate(!file.bad(), "{}: cannot be read: {}", path, std::strerror(errno));
  return text;
}

}  // namespace trireme::deck
