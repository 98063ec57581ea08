// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "trireme/base/error.hpp"

namespace trireme {

/// Appends values to a byte string, in the byte order of this machine. For messages between
/// processes of one run, not for files.
class ByteWriter {
 public:
  template <class T>
    requires std::is_arithmetic_v<T>
  void put(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void put_string(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
  }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void put_list(const std::vector<T>& values) {
    put(static_cast<std::uint64_t>(values.size()));
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void put_strings(const std::vector<std::string>& texts) {
    put(static_cast<std::uint64_t>(texts.size()));
    for (const std::string& text : texts) put_string(text);
  }
  std::string take() { return std::exchange(bytes_, {}); }

 private:
  std::string bytes_;
};

/// Reads the values that a ByteWriter wrote, in the same order. The bytes may be untrusted: every
/// function throws InputError at the end of the bytes, before it allocates memory.
class ByteReader {
 public:
  /// `bytes` must outlive the reader.
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  bool at_end() const { return rest_.empty(); }
  template <class T>
    requires std::is_arithmetic_v<T>
  T get() {
    static_assert(!std::is_same_v<T, bool>, "a byte from outside may be neither 0 nor 1");
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  bool get_bool() { return get<std::uint8_t>() != 0; }
  /// Returns an enumerator. Throws InputError above `last`.
  template <class Enum>
  Enum get_enum(Enum last) {
    const auto value = get<std::underlying_type_t<Enum>>();
    if (value > static_cast<std::underlying_type_t<Enum>>(last))
      throw InputError("an unknown kind of value");
    return static_cast<Enum>(value);
  }
  std::string get_string() { return std::string(get_view()); }
  /// Returns a string within the bytes.
  std::string_view get_view() { return take(get<std::uint64_t>()); }
  template <class T>
    requires std::is_trivially_copyable_v<T>
  std::vector<T> get_list() {
    const auto count = get<std::uint64_t>();
    if (count > rest_.size() / sizeof(T)) fail();
    std::vector<T> values(count);
    const std::string_view bytes = take(count * sizeof(T));
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::vector<std::string> get_strings() {
    const auto count = get<std::uint64_t>();
    if (count > rest_.size() / sizeof(std::uint64_t)) fail();
    std::vector<std::string> texts;
    for (std::uint64_t i = 0; i < count; ++i) texts.push_back(get_string());
    return texts;
  }

 private:
  [[noreturn]] static void fail() { throw InputError("the bytes end within a value"); }
  std::string_view take(std::uint64_t bytes) {
    if (bytes > rest_.size()) fail();
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
};

}  // namespace trireme
