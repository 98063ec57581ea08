// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {

// The lists of a shard: /labels, /offsets, /documents and /checksums.

/// Throws InputError if a compressed list has so many values that it is no list of the samples.
///
/// An honest shard has fewer values in a list than stored bytes of samples. A small file could
/// otherwise claim gigabytes: deflate packs equal values to a thousandth.
void check_list(const io::StoredDataset& list, const io::StoredDataset& samples);

/// Reads a list of whole numbers in pieces of whole chunks, so memory does not grow with it. Calls
/// `use(first, values)` for each. Numbers beyond int64 become its limits.
void read_list(
    const io::Hdf5Reader& reader, const io::StoredDataset& list,
    const std::function<void(std::int64_t first, std::span<const std::int64_t> values)>& use);

/// Returns what `read` returns. Throws Failure that names the file if this machine has too little
/// memory for it.
template <class Read>
auto within_memory(const std::string& path, Read&& read);
/// Throws the error of within_memory().
[[noreturn]] void throw_out_of_memory(const std::string& path);

template <class Read>
auto within_memory(const std::string& path, Read&& read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw_out_of_memory(path);
  } catch (const std::length_error&) {
    throw_out_of_memory(path);
  }
}

}  // namespace trireme::data
