// Recognizes forms of files by their first bytes.
//
// Most forms have a fixed sign, listed in `signatures`. ZIP archives are told apart by their first
// entry. Pickles have a sign of two bytes, so more of them is compared.
#include "trireme/io/file_form.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "trireme/io/file.hpp"

namespace trireme::io {
namespace {

using namespace std::string_view_literals;

constexpr auto other = FileForm::Kind::other;
constexpr std::int64_t max_begin_bytes = 512;

constexpr const char *unpack = "unpack it first",
                     *save_array = "save the array alone: numpy.save(\"NAME.npy\", array)",
                     *convert = "convert it first, as with pandas or pyarrow";

/// Bytes at a fixed place that show a form.
struct Signature {
  std::size_t at;
  std::string_view bytes;
  const char *name, *advice;
  FileForm::Kind kind = FileForm::Kind::other;
};
constexpr Signature signatures[] = {
    {0, "\x1f\x8b\x08"sv, "a gzip file", "unpack it first (gunzip)", FileForm::Kind::gzip},
    {0,
     "\xfd"
     "7zXZ\0"sv,
     "an xz file", "unpack it first (unxz)"},
    {0, "\x28\xb5\x2f\xfd"sv, "a zstd file", "unpack it first (unzstd)"},
    {0, "\x04\x22\x4d\x18"sv, "an lz4 file", "unpack it first (unlz4)"},
    {4, "1AY&SY"sv, "a bzip2 file", "unpack it first (bunzip2)"},
    {257, "ustar"sv, "a tar archive", unpack},
    {0, "7z\xbc\xaf\x27\x1c"sv, "a 7z archive", unpack},
    {0, "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20"sv, "a file of PyTorch (torch.save)", save_array},
    {0, "\x93NUMPY"sv, "a .npy file of NumPy", "give it a name that ends in .npy",
     FileForm::Kind::npy},
    {0, "\x89HDF\r\n\x1a\n"sv, "an HDF5 file", save_array},
    {0, "PAR1"sv, "a Parquet file", convert},
    {0, "ARROW1\0\0"sv, "an Arrow file", convert},
};

bool begins_with(std::string_view begin, std::size_t at, std::string_view bytes) {
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
  if (name.ends_with(".npy")) return {other, "an .npz archive of NumPy", save_array};
  if (name.ends_with("/data.pkl")) return {other, "a file of PyTorch (torch.save)", save_array};
  return {other, "a ZIP archive", "unpack it first (unzip)"};
}

/// Returns whether a file is a pickle of Python of protocol 2 to 5: it begins with the protocol and
/// an opcode that can follow, and ends with the opcode STOP.
bool is_pickle(const File& file, std::string_view begin) {
  constexpr char protocol_opcode = '\x80', frame_opcode = '\x95', stop_opcode = '.';
  constexpr std::size_t frame_header_bytes = 11;
  if (begin.size() < 4 || begin[0] != protocol_opcode || begin[1] < 2 || begin[1] > 5) return false;
  const std::int64_t bytes = file.size();
  char last = 0;
  file.read_at(bytes - 1, &last, 1);
  if (last != stop_opcode) return false;
  if (begin[1] < 4) return "](}c)XUKJMG"sv.find(begin[2]) != std::string_view::npos;
  if (begin[2] != frame_opcode || begin.size() < frame_header_bytes) return false;
  std::uint64_t frame_bytes = 0;
  std::memcpy(&frame_bytes, begin.data() + 3, sizeof frame_bytes);
  return frame_bytes <= static_cast<std::uint64_t>(bytes);
}

}  // namespace

std::optional<FileForm> recognize_form(const std::string& path) {
  const File file(path, File::Mode::read);
  std::string begin(static_cast<std::size_t>(std::min(file.size(), max_begin_bytes)), '\0');
  file.read_at(0, begin.data(), std::ssize(begin));
  if (begins_with(begin, 0, "PK\x03\x04"sv) || begins_with(begin, 0, "PK\x05\x06"sv))
    return zip_form(begin);
  for (const Signature& sign : signatures)
    if (begins_with(begin, sign.at, sign.bytes)) return FileForm{sign.kind, sign.name, sign.advice};
  if (is_pickle(file, begin)) return FileForm{other, "a pickle of Python", save_array};
  return std::nullopt;
}

}  // namespace trireme::io
