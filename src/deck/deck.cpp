// SPDX-License-Identifier: Apache-2.0
//
// Entry points of the deck library: parse() reads and validates a deck of a user, parse_stored()
// that of a checkpoint, read_file() reads the text of a file. Also the folders of the splits and
// the locations of keys.
#include "trireme/deck/deck.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "contradictions.hpp"
#include "limits.hpp"
#include "tables.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/deck/reader.hpp"

namespace trireme::deck {

namespace {

// A generator behind `<(command)` may take its time; a pipe that nobody writes to must not hang.
constexpr int max_silence_seconds = 10;

/// Waits until a pipe has bytes or its writers are gone. Throws InputError if nothing happens.
void await_bytes(int file, const std::string& path) {
  pollfd wait{.fd = file, .events = POLLIN, .revents = 0};
  int ready = 0;
  do ready = ::poll(&wait, 1, max_silence_seconds * 1000);
  while (ready < 0 && errno == EINTR);
  validate(ready != 0, "{}: is a pipe to which nothing was written for {} s; give the deck's file",
           path, max_silence_seconds);
}

/// Reads a file or pipe from its beginning, at most `max_bytes` bytes. Throws InputError.
std::string read_beginning(const std::string& path, std::size_t max_bytes) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  validate_path(file >= 0 ? 0 : errno, "{}: cannot be read: {}", path, std::strerror(errno));
  const auto close = [](const int* descriptor) { ::close(*descriptor); };
  const std::unique_ptr<const int, decltype(close)> closer(&file, close);
  struct stat status{};
  const bool is_pipe = ::fstat(file, &status) == 0 && S_ISFIFO(status.st_mode);
  if (!is_pipe) ::fcntl(file, F_SETFL, ::fcntl(file, F_GETFL) & ~O_NONBLOCK);  // a terminal
  std::string text(max_bytes, '\0');
  for (std::size_t bytes = 0;;) {
    if (is_pipe) await_bytes(file, path);
    const ssize_t got = ::read(file, text.data() + bytes, max_bytes - bytes);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    validate_path(got >= 0 ? 0 : errno, "{}: cannot be read: {}", path, std::strerror(errno));
    bytes += static_cast<std::size_t>(got);
    if (got > 0 && bytes < max_bytes) continue;
    text.resize(bytes);
    return text;
  }
}

/// Fills in the defaults that depend on other keys.
void fill_in_defaults(Deck& deck, const Reader& reader) {
  if (deck.run.folder.empty()) deck.run.folder = "runs/" + deck.run.name;
  const bool is_gpt = deck.model.kind == model::ModelKind::gpt;
  if (!reader.is_set("checkpoint.best"))
    deck.checkpoint.best = deck.data.validation.empty() || deck.evaluate.subset > 0 ? ""
                           : is_gpt                                                 ? "loss"
                                                                                    : "top1";
  optim::ScheduleOptions& schedule = deck.schedule;
  if (schedule.kind == optim::ScheduleKind::one_cycle) {
    // PyTorch's OneCycleLR: div_factor = 25, final_div_factor = 1e4.
    if (!reader.is_set("schedule.start_ratio")) schedule.start_ratio = 0.04;
    if (!reader.is_set("schedule.min_ratio")) schedule.min_ratio = 4e-6;
  }
  if (schedule.kind == optim::ScheduleKind::exponential && !reader.is_set("schedule.every"))
    schedule.every = Duration{1, Duration::Unit::epochs};
  if (!is_gpt) return;
  model::TransformerOptions& gpt = deck.model.gpt;
  if (gpt.kv_heads == 0) gpt.kv_heads = gpt.heads;
  // SwiGLU has three matrices and GELU two, so 2/3 of the width has the same number of weights
  // (Shazeer 2020, section 2). The width is rounded up to a multiple of 64 for the tensor cores.
  if (gpt.mlp_width == 0)
    gpt.mlp_width =
        gpt.mlp == model::MlpKind::swiglu ? (8 * gpt.width / 3 + 63) / 64 * 64 : 4 * gpt.width;
  if (!reader.is_set("model.bias")) gpt.bias = gpt.positions == model::PositionKind::learned;
}

/// Reads and validates all keys. Throws one InputError with all mistakes.
Deck read(Reader& reader, DeckPurpose purpose) {
  // The order matters: conditional defaults need all keys, and contradictions need the defaults.
  Deck deck;
  visit(reader, deck);
  fill_in_defaults(deck, reader);
  find_contradictions(deck, purpose, reader);
  reader.finish();
  deck.key_locations = reader.key_locations();
  return deck;
}

}  // namespace

Deck parse(const std::string& text, const std::string& file, const std::vector<Override>& overrides,
           DeckPurpose purpose) {
  Reader reader(text, file, overrides, KeysWithoutEffect::reject);
  return read(reader, purpose);
}

StoredDeck parse_stored(const std::string& text, const std::string& file) {
  Reader reader(text, file, {}, KeysWithoutEffect::drop);
  Deck deck = read(reader, DeckPurpose::training);
  return {std::move(deck), reader.dropped_keys()};
}

std::string with_location(const Deck& deck, const std::string& message) {
  const std::string key = message.substr(0, message.find_first_of(" :"));
  const auto found = deck.key_locations.find(key);
  return found == deck.key_locations.end() ? message : found->second + ": " + message;
}

std::string data::DataOptions::* folder_of_split(std::string_view split) {
  if (split == "train") return &data::DataOptions::train;
  if (split == "validation") return &data::DataOptions::validation;
  if (split == "test") return &data::DataOptions::test;
  return nullptr;
}

std::string read_file(const std::string& path) {
  // An error here is ignored: opening the file below reports the reason.
  std::error_code unreadable;
  validate(!std::filesystem::is_directory(path, unreadable),
           "{}: is a folder; give the deck's file", path);
  const std::string text = read_beginning(path, max_deck_bytes + 1);
  validate(text.size() <= max_deck_bytes,
           "{}: is longer than {} bytes, so it is not a deck; give a text file in TOML", path,
           max_deck_bytes);
  return text;
}

}  // namespace trireme::deck
