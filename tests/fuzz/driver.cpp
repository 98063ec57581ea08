// SPDX-License-Identifier: Apache-2.0
//
// tests_fuzz READER [--seconds N] [--seed S] [FILE...]: reads mutants of small files for N seconds.
//
// 1. Reads the kept files of tests/fuzz/kept/READER, which once were read wrongly, and the FILEs.
// 2. Makes mutants of them and of valid files until the time is over.
//
// Each input is written to fuzz_READER.input in the current folder before it is read, so a crash
// leaves it there. To read only this input again: `tests_fuzz READER --seconds 0 FILE`.
//
// The exit status is 1 if an input was read wrongly (readers.hpp has the limits), and if mutants
// were read of which none or all were accepted.
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "mutate.hpp"
#include "readers.hpp"
#include "trireme/base/clock.hpp"

namespace trireme::fuzz {
namespace {

constexpr std::size_t max_input_bytes = 64 << 10;
// Accepted mutants that are mutated again.
constexpr std::size_t max_descendants = 200;

struct Options {
  const Reader* reader = nullptr;
  double seconds = 30;
  std::uint64_t seed = 1;
  std::vector<std::string> files;
};

template <class T>
T parse(const std::string& option, const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument(fmt::format("{} {}: not a number", option, text));
  return value;
}

Options parse_options(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--seconds" || word == "--seed") {
      const std::string value = i + 1 < words.size() ? words[++i] : "";
      if (word == "--seed")
        options.seed = parse<std::uint64_t>(word, value);
      else
        options.seconds = parse<double>(word, value);
    } else if (options.reader != nullptr) {
      options.files.push_back(word);
    } else {
      options.reader = find_reader(word);
    }
  }
  if (options.reader == nullptr) {
    std::string names;
    for (const Reader& reader : all_readers()) names += fmt::format(" {}", reader.name);
    throw std::invalid_argument(
        "usage: tests_fuzz READER [--seconds N] [--seed S] [FILE...]\n"
        "readers:" +
        names);
  }
  return options;
}

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::invalid_argument(path + ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The file that holds the input which is being read.
class InputRecord {
 public:
  explicit InputRecord(const std::string& path)
      : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666)) {
    if (descriptor_ < 0) throw std::runtime_error(path + ": cannot be created");
  }
  ~InputRecord() { ::close(descriptor_); }
  InputRecord(const InputRecord&) = delete;

  const std::string& path() const { return path_; }
  void write(const std::string& bytes) const {
    const bool done =
        ::ftruncate(descriptor_, static_cast<off_t>(bytes.size())) == 0 &&
        ::pwrite(descriptor_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size());
    if (!done) throw std::runtime_error(path_ + ": cannot be written");
  }

 private:
  std::string path_;
  int descriptor_;
};

struct Counts {
  std::int64_t inputs = 0, accepted = 0;
};

class Driver {
 public:
  explicit Driver(const Options& options)
      : options_(options), record_(fmt::format("fuzz_{}.input", options.reader->name)) {}

  Counts replay(const std::vector<std::string>& paths) {
    Counts counts;
    for (const std::string& path : paths) {
      files_.push_back(read_file(path));
      count(counts, files_.back(), path);
    }
    return counts;
  }

  Counts mutate() {
    Mutator mutator(options_.seed);
    const std::vector<std::string> seeds = options_.reader->seeds();
    for (const std::string& seed : seeds)
      if (const std::string refusal = read(seed, "a valid file"); !refusal.empty())
        throw std::runtime_error("a valid file is refused: " + refusal);
    files_.insert(files_.end(), seeds.begin(), seeds.end());
    const std::size_t originals = files_.size();
    Counts counts;
    for (const double end = monotonic_seconds() + options_.seconds; monotonic_seconds() < end;) {
      std::string mutant = mutator.mutant_of(files_, max_input_bytes);
      if (options_.reader->repair != nullptr && mutator.draw(4) != 0)
        options_.reader->repair(mutant);
      const bool accepted =
          count(counts, mutant, fmt::format("mutant {} of seed {}", counts.inputs, options_.seed));
      // Some accepted mutants replace earlier ones, so that changes accumulate.
      if (!accepted || mutator.draw(8) != 0) continue;
      if (files_.size() < originals + max_descendants)
        files_.push_back(std::move(mutant));
      else
        files_[originals + mutator.draw(max_descendants)] = std::move(mutant);
    }
    return counts;
  }

 private:
  bool count(Counts& counts, const std::string& bytes, const std::string& name) {
    const bool accepted = read(bytes, name).empty();
    ++counts.inputs;
    counts.accepted += accepted ? 1 : 0;
    return accepted;
  }
  /// Returns why an input is refused; "" if it is accepted. Throws std::runtime_error that names it
  /// if it was read wrongly.
  std::string read(const std::string& bytes, const std::string& name) {
    record_.write(bytes);
    try {
      return read_within_limits(*options_.reader, bytes);
    } catch (const std::exception& error) {
      throw std::runtime_error(fmt::format(
          "{} ({} bytes): {}\nthe input is kept in {}; read it again with: tests_fuzz "
          "{} --seconds 0 {}",
          name, bytes.size(), error.what(), record_.path(), options_.reader->name, record_.path()));
    }
  }

  const Options& options_;
  InputRecord record_;
  std::vector<std::string> files_;
};

int run(const Options& options) {
  const char* const name = options.reader->name;
  std::vector<std::string> paths = options.files;
  const std::string kept = fmt::format("{}/{}", TRIREME_FUZZ_KEPT, name);
  if (paths.empty() && std::filesystem::is_directory(kept))
    for (const auto& entry : std::filesystem::directory_iterator(kept))
      paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  fmt::print("{}: {} s, seed {}\n", name, options.seconds, options.seed);
  std::fflush(stdout);
  Driver driver(options);
  const Counts replayed = driver.replay(paths);
  fmt::print("{}: {} files, {} accepted\n", name, replayed.inputs, replayed.accepted);
  if (options.seconds <= 0) return EXIT_SUCCESS;
  const Counts mutants = driver.mutate();
  fmt::print("{}: {} mutants, {} accepted, {} refused\n", name, mutants.inputs, mutants.accepted,
             mutants.inputs - mutants.accepted);
  const bool both = mutants.accepted > 0 && mutants.accepted < mutants.inputs;
  if (!both) fmt::print(stderr, "{}: the mutants test nothing\n", name);
  return both ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace trireme::fuzz

int main(int argc, char** argv) {
  try {
    return trireme::fuzz::run(trireme::fuzz::parse_options({argv + 1, argv + argc}));
  } catch (const std::invalid_argument& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "tests_fuzz: {}\n", error.what());
    return EXIT_FAILURE;
  }
}
