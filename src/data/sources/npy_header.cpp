// SPDX-License-Identifier: Apache-2.0
//
// Reads the header of NumPy files. It is a Python literal behind a magic, a version and a length:
//
//   {'descr': '<u2', 'fortran_order': False, 'shape': (1000, 28, 28), }
#include "npy_header.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <string_view>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

std::string header_text(const io::File& file, std::int64_t& end) {
  constexpr std::int64_t max_header_bytes = 1 << 16;
  unsigned char start[12];
  const std::int64_t bytes = file.size();
  validate(bytes >= 12, "{}: is too short for a .npy file", file.path());
  file.read_at(0, start, sizeof start);
  validate(std::memcmp(start, "\x93NUMPY", 6) == 0,
           "{}: does not begin as a .npy file does (numpy.save makes one)", file.path());
  validate(start[6] >= 1 && start[6] <= 3,
           "{}: version {} of the .npy format is not known; 1 to 3 are", file.path(), start[6]);
  const std::int64_t begin = start[6] == 1 ? 10 : 12;
  std::int64_t length = start[8] | start[9] << 8;
  if (start[6] > 1) length |= std::int64_t{start[10]} << 16 | std::int64_t{start[11]} << 24;
  validate(length <= max_header_bytes && begin + length <= bytes,
           "{}: its header of {} bytes is invalid", file.path(), length);
  std::string header(static_cast<std::size_t>(length), ' ');
  file.read_at(begin, header.data(), length);
  end = begin + length;
  return header;
}

/// Returns the rest of the header after 'key': without leading blanks.
std::string_view value_of(std::string_view header, std::string_view key, const std::string& path) {
  const std::size_t at = header.find(fmt::format("'{}':", key));
  validate(at != std::string_view::npos, "{}: its header has no {}", path, key);
  header.remove_prefix(at + key.size() + 3);
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

/// Returns the extents of a tuple as "(1000, 28)" or "(1000,)". Throws InputError.
std::vector<std::int64_t> shape_of_tuple(std::string_view text, const std::string& path) {
  const std::string_view tuple = text.substr(0, std::min(text.find(')'), text.size()));
  std::vector<std::int64_t> shape;
  bool is_tuple = tuple.starts_with('(') && tuple.size() < text.size();
  std::int64_t elements = 1;
  for (std::string_view rest = tuple.substr(std::min<std::size_t>(1, tuple.size()));
       is_tuple && !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    std::string_view word = rest.substr(0, comma);
    word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    if (word.empty() && rest.empty() && !shape.empty()) break;  // behind the last comma
    std::int64_t extent = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), extent);
    is_tuple = error == std::errc() && end == word.data() + word.size() && extent >= 0;
    if (extent > 0)
      validate(elements <= std::numeric_limits<std::int64_t>::max() / extent,
               "{}: its shape is {}), more than a file holds", path, printable(tuple));
    elements *= std::max<std::int64_t>(extent, 1);
    shape.push_back(extent);
  }
  validate(is_tuple, "{}: its shape is {}; expected extents, as in (1000, 28, 28)", path,
           printable(tuple));
  return shape;
}

}  // namespace

std::int64_t NpyHeader::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

std::int64_t NpyHeader::integer_bytes(bool& is_signed) const {
  const bool known = type.size() == 3 && (type[0] == '<' || type[0] == '|') &&
                     (type[1] == 'u' || type[1] == 'i') &&
                     std::string_view("1248").find(type[2]) != std::string_view::npos;
  is_signed = known && type[1] == 'i';
  return known ? type[2] - '0' : 0;
}

NpyHeader read_npy_header(const io::File& file) {
  NpyHeader header;
  const std::string text = header_text(file, header.begin);
  const std::string_view type = value_of(text, "descr", file.path()),
                         order = value_of(text, "fortran_order", file.path());
  const std::size_t quote = type.starts_with('\'') ? type.find('\'', 1) : std::string_view::npos;
  header.type = quote == std::string_view::npos ? type.substr(0, type.find(", 'fortran_order'"))
                                                : type.substr(1, quote - 1);
  validate(order.starts_with("True") || order.starts_with("False"),
           "{}: its header has fortran_order: {}; expected True or False", file.path(),
           printable(order.substr(0, order.find(','))));
  header.is_fortran_order = order.starts_with("True");
  header.shape = shape_of_tuple(value_of(text, "shape", file.path()), file.path());
  return header;
}

void check_npy_size(const io::File& file, const NpyHeader& header, std::int64_t bytes) {
  const std::int64_t rest = file.size() - header.begin;
  validate(rest % bytes == 0 && rest / bytes == header.elements(),
           "{}: its header says {} elements of {} bytes, but {} bytes follow it", file.path(),
           header.elements(), bytes, rest);
}

}  // namespace trireme::data
