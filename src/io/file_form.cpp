// SPDX-License-Identifier: Apache-2.0
//
// Recognizes forms of files by their paths and first bytes.
//
// A text is told apart by its words, since it may begin with any letters. Most other forms have a
// fixed sign, listed in `signatures`; short signs of letters need a second one. ZIP archives are
// told apart by their first entry. TFRecord has a checksum. Pickles have a sign of two bytes or of
// letters, so more of them is compared.
#include "trireme/io/file_form.hpp"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>

#include "trireme/base/error.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/io/file.hpp"

namespace trireme::io {
namespace {

using namespace std::string_view_literals;
using Kind = FileForm::Kind;

constexpr std::int64_t end_bytes = 8;  // as many as the end of a form has

constexpr const char *unpack = "unpack it first",
                     *save_array = "save the array alone: numpy.save(\"NAME.npy\", array)",
                     *store_again =
                         "write its samples as files in a tar archive, as JSON Lines, or with h5py";

/// Returns whether the sum of a tar header is that of its bytes, with blanks in place of the sum.
bool has_tar_checksum(std::string_view begin) {
  constexpr std::size_t header_bytes = 512, sum_at = 148, sum_bytes = 8;
  if (begin.size() < header_bytes) return false;
  std::int64_t unsigned_sum = 0, signed_sum = 0, stored = 0;  // old programs sum signed bytes
  for (std::size_t i = 0; i < header_bytes; ++i) {
    const char byte = i >= sum_at && i < sum_at + sum_bytes ? ' ' : begin[i];
    unsigned_sum += static_cast<unsigned char>(byte);
    signed_sum += static_cast<signed char>(byte);
  }
  for (const char digit : begin.substr(sum_at, sum_bytes))
    if (digit >= '0' && digit <= '7') stored = stored * 8 + (digit - '0');
  return stored == unsigned_sum || stored == signed_sum;
}

bool has_bzip2_head(std::string_view begin) { return begin.starts_with("BZh"sv); }

/// Bytes at a fixed place that show a form.
constexpr const char* as_netcdf4 = "`nccopy -k nc4 OLD.nc NEW.nc` makes it netCDF-4";

struct Signature {
  std::size_t at;
  std::string_view bytes;
  Kind kind;
  const char *name, *advice;
  bool (*is_confirmed)(std::string_view begin) = nullptr;  ///< null: the bytes suffice
  std::string_view end = "";                               ///< the last bytes of the file
};
constexpr Signature signatures[] = {
    {0, "\x1f\x8b\x08"sv, Kind::gzip, "a gzip file", "unpack it first (gunzip)"},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     Kind::packed, "an xz file", "unpack it first (unxz)"},
    {0, "\x28\xb5\x2f\xfd"sv, Kind::packed, "a zstd file", "unpack it first (unzstd)"},
    {0, "\x04\x22\x4d\x18"sv, Kind::packed, "an lz4 file", "unpack it first (unlz4)"},
    {4, "1AY&SY"sv, Kind::packed, "a bzip2 file", "unpack it first (bunzip2)", has_bzip2_head},
    {257, "ustar"sv, Kind::tar, "a tar archive", "unpack it first (tar -x)", has_tar_checksum},
    {0, "7z\xbc\xaf\x27\x1c"sv, Kind::other, "a 7z archive", unpack},
    {0, "\x93NUMPY"sv, Kind::npy, "a .npy file of NumPy", "give it a name that ends in .npy"},
    {0, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20"sv, Kind::other, "a file of PyTorch (torch.save)",
     "save it with safetensors, or its arrays with numpy.save"},
    {0, "\x89HDF\r\n\x1a\n"sv, Kind::hdf5, "an HDF5 file", save_array},
    {0, "CDF\x01"sv, Kind::other, "a netCDF-3 file", as_netcdf4},
    {0, "CDF\x02"sv, Kind::other, "a netCDF-3 file", as_netcdf4},
    {0, "CDF\x05"sv, Kind::other, "a netCDF-3 file", as_netcdf4},
    {0, "PAR1"sv, Kind::other, "a Parquet file", store_again, nullptr, "PAR1"sv},
    {0, "ARROW1\0\0"sv, Kind::other, "an Arrow file", store_again},
    {16, "\xde\xc0\xef\xbe"sv, Kind::other, "an LMDB database", store_again},
    {0, "SQLite format 3\0"sv, Kind::other, "an SQLite database", store_again},
};

bool has_at(std::string_view begin, std::size_t at, std::string_view bytes) {
  return begin.size() >= at + bytes.size() && begin.substr(at, bytes.size()) == bytes;
}

/// Returns the form of a ZIP archive, which programs use as a container.
FileForm zip_form(std::string_view begin) {
  // The header of an entry has 30 bytes, the length of its name at byte 26, and then the name.
  constexpr std::size_t header_bytes = 30, length_at = 26;
  std::string_view name;
  if (begin.size() >= header_bytes) {
    std::uint16_t length = 0;
    std::memcpy(&length, begin.data() + length_at, sizeof length);
    name = begin.substr(header_bytes, length);
  }
  if (name.ends_with(".npy")) return {Kind::other, "an .npz archive of NumPy", save_array};
  if (name.ends_with("/data.pkl"))
    return {Kind::other, "a file of PyTorch (torch.save)",
            "save it with safetensors, or its arrays with numpy.save"};
  return {Kind::other, "a ZIP archive", "unpack it first (unzip)"};
}

/// Returns CRC-32C of bytes (Castagnoli's polynomial, reflected).
std::uint32_t crc32c(std::string_view bytes) {
  constexpr std::uint32_t polynomial = 0x82F63B78;
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (polynomial & (0 - (crc & 1)));
  }
  return ~crc;
}

/// Returns whether a file begins with the length of a record of TFRecord and its masked checksum.
bool is_tfrecord(std::string_view begin) {
  constexpr std::size_t length_bytes = 8, head_bytes = 12;
  if (begin.size() < head_bytes) return false;
  const std::uint32_t crc = crc32c(begin.substr(0, length_bytes));
  const std::uint32_t masked = (crc >> 15 | crc << 17) + 0xa282ead8u;
  return std::memcmp(&masked, begin.data() + length_bytes, sizeof masked) == 0;
}

/// Returns whether a line is the first one of tiktoken: the bytes of a piece in base64, a blank,
/// and the number 0.
bool is_tiktoken(std::string_view line) {
  const std::size_t blank = line.find(' ');
  if (blank == 0 || blank == std::string_view::npos || blank % 4 != 0) return false;
  const auto is_base64 = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '/' || c == '=';
  };
  return line.substr(blank + 1) == "0" &&
         std::all_of(line.begin(), line.begin() + static_cast<std::ptrdiff_t>(blank), is_base64);
}

/// Returns whether bytes are text: UTF-8 without other control characters than those of lines.
bool is_text(std::string_view begin) {
  const std::string_view text = begin.substr(0, character_boundary(begin, begin.size()));
  return is_utf8(text) && std::none_of(text.begin(), text.end(), [](char c) {
           return static_cast<unsigned char>(c) < ' ' &&
                  "\t\n\v\f\r\x1b"sv.find(c) == std::string_view::npos;
         });
}

/// Returns the form of a text.
std::optional<FileForm> text_form(std::string_view text) {
  if (text.starts_with("version https://git-lfs.github.com/spec/"sv) &&
      text.find("\noid sha256:"sv) != std::string_view::npos)
    return FileForm{Kind::other, "a pointer of git-lfs", "`git lfs pull` fetches the file itself"};
  const char* const encode_there =
      "encode the texts with that program, and make shards with `shard tokens`";
  if (is_tiktoken(text.substr(0, text.find('\n'))))
    return FileForm{Kind::json, "a vocabulary of tiktoken", encode_there};
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{') return std::nullopt;
  const std::size_t second = text.find_first_not_of(" \t\r\n", first + 1);
  if (second == std::string_view::npos || text[second] != '"') return std::nullopt;
  const auto has = [&](std::string_view word) { return text.find(word) != std::string_view::npos; };
  if (has("\"weight_map\"") || (has("\"metadata\"") && has("\"total_size\"")))
    return FileForm{Kind::json, "the JSON index of a model in several safetensors files",
                    "`trireme import` reads it under a name that ends in .json"};
  if (has("\"truncation\"") || has("\"added_tokens\""))
    return FileForm{Kind::json, "a tokenizer.json of Hugging Face", encode_there};
  return FileForm{Kind::json, "a JSON file", "give a file of the form that is read"};
}

/// Returns whether a file begins as pickles of protocol 0 or 1 do that hold a list, a dictionary or
/// an array. Nothing in them is a sign for certain but the first operations together.
bool begins_as_old_pickle(std::string_view begin) {
  for (const std::string_view sign :
       {"(lp0\n"sv, "(dp0\n"sv, "]q\0("sv, "}q\0("sv, "cnumpy.core.multiarray\n_reconstruct\n"sv,
        "cnumpy._core.multiarray\n_reconstruct\n"sv, "ccopy_reg\n_reconstructor\n"sv})
    if (begin.starts_with(sign)) return true;
  return false;
}

/// Returns whether a file is a pickle of Python: it begins with the protocol, 2 to 5, and an opcode
/// that can follow, or as older ones do, and ends with the opcode STOP.
bool is_pickle(std::string_view begin, std::string_view end, std::int64_t bytes) {
  constexpr char protocol_opcode = '\x80', frame_opcode = '\x95', stop_opcode = '.';
  constexpr std::size_t frame_header_bytes = 11;
  if (!end.ends_with(stop_opcode)) return false;
  if (begins_as_old_pickle(begin)) return true;
  if (begin.size() < 4 || begin[0] != protocol_opcode || begin[1] < 2 || begin[1] > 5) return false;
  if (begin[1] < 4) return "](}c)XUKJMG"sv.find(begin[2]) != std::string_view::npos;
  if (begin[2] != frame_opcode || begin.size() < frame_header_bytes) return false;
  std::uint64_t frame_bytes = 0;
  std::memcpy(&frame_bytes, begin.data() + 3, sizeof frame_bytes);
  return frame_bytes <= static_cast<std::uint64_t>(bytes);
}

/// `end`: the last bytes of the file; none if they are unknown.
std::optional<FileForm> form_of(std::string_view begin, std::optional<std::string_view> end) {
  if (is_text(begin)) return text_form(begin);
  if (has_at(begin, 0, "PK\x03\x04"sv) || has_at(begin, 0, "PK\x05\x06"sv)) return zip_form(begin);
  for (const Signature& signature : signatures)
    if (has_at(begin, signature.at, signature.bytes) &&
        (signature.is_confirmed == nullptr || signature.is_confirmed(begin)) &&
        (!end || end->ends_with(signature.end)))
      return FileForm{signature.kind, signature.name, signature.advice};
  if (is_tfrecord(begin)) return FileForm{Kind::other, "a TFRecord file", store_again};
  return std::nullopt;
}

}  // namespace

std::optional<FileForm> recognize_content(std::string_view begin) {
  return form_of(begin, std::nullopt);
}

std::optional<FileForm> recognize_form(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(path, error)) {
    if (!is_address(path)) return std::nullopt;
    return FileForm{Kind::other, "an address, not a path",
                    "copy the files to a file system that the nodes can read"};
  }
  if (fs::is_directory(path, error)) {
    if (!fs::exists(path + "/data.mdb", error)) return std::nullopt;
    return FileForm{Kind::other, "an LMDB database", store_again};
  }
  try {
    const File file(path, File::Mode::read);
    std::string begin(static_cast<std::size_t>(std::min(file.size(), form_bytes)), '\0');
    file.read_at(0, begin.data(), std::ssize(begin));
    std::string end(static_cast<std::size_t>(std::min(file.size(), end_bytes)), '\0');
    file.read_at(file.size() - std::ssize(end), end.data(), std::ssize(end));
    if (const std::optional<FileForm> form = form_of(begin, end)) return form;
    if (is_pickle(begin, end, file.size()))
      return FileForm{Kind::other, "a pickle of Python", save_array};
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // the reader of the file says why
  }
}

std::string form_hint(const std::optional<FileForm>& form) {
  return form ? fmt::format(": it is {}; {}", form->name, form->advice) : "";
}

}  // namespace trireme::io
