// SPDX-License-Identifier: Apache-2.0
//
// The readers under libFuzzer, which changes inputs so that they reach new code. scripts/fuzz.sh
// builds and starts it.
//
// TRIREME_FUZZ_READER names the reader. If TRIREME_FUZZ_SEEDS names a folder, valid files are
// written there at the start.
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "readers.hpp"

// Defined by libFuzzer.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace {

const trireme::fuzz::Reader& chosen_reader() {
  static const trireme::fuzz::Reader& reader = [&]() -> const trireme::fuzz::Reader& {
    const char* const name = std::getenv("TRIREME_FUZZ_READER");
    const auto* const found = trireme::fuzz::find_reader(name == nullptr ? "" : name);
    if (found != nullptr) return *found;
    std::fprintf(stderr, "TRIREME_FUZZ_READER names no reader; the readers are:");
    for (const auto& other : trireme::fuzz::all_readers()) std::fprintf(stderr, " %s", other.name);
    std::fprintf(stderr, "\n");
    std::exit(2);
  }();
  return reader;
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const auto& reader = chosen_reader();
  // An input that never ends: libFuzzer keeps it after an abort, not after SIGPROF.
  std::signal(SIGPROF, [](int) { std::abort(); });
  if (const char* const folder = std::getenv("TRIREME_FUZZ_SEEDS")) {
    int number = 0;
    for (const std::string& seed : reader.seeds())
      std::ofstream(std::string(folder) + "/seed_" + std::to_string(++number), std::ios::binary)
          << seed;
  }
  return 0;
}

/// An exception ends the process; libFuzzer then keeps the input.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  trireme::fuzz::read_within_limits(chosen_reader(), bytes);
  return 0;
}

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  size = LLVMFuzzerMutate(data, size, max_size);
  const auto& reader = chosen_reader();
  if (reader.repair == nullptr || seed % 4 == 0) return size;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  reader.repair(bytes);
  std::memcpy(data, bytes.data(), size);  // repairs keep the size
  return size;
}
