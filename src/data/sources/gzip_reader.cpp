// SPDX-License-Identifier: Apache-2.0
//
// Reads plain and gzip files.
//
// A gzip file is one or more members, one after the other, and zeros that fill it up. zlib's gzread
// takes whatever else follows a member for no part of the file, so damage at the beginning of a
// later member would drop the rest without a word. Here every byte belongs to a member or is zero.
// zlib compares the checksum and the length of each member.
#include "gzip_reader.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include <zlib.h>

#include "trireme/base/check.hpp"
#include "trireme/data/sources/unpacking.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {
namespace {

constexpr std::size_t input_bytes = 1 << 18;
// Reads the wrapper of gzip with the largest window (zlib.h, inflateInit2).
constexpr int gzip_window_bits = 16 + MAX_WBITS;

}  // namespace

/// An open file and what is unpacked from it so far.
class GzipReader::Stream {
 public:
  explicit Stream(const std::string& path)
      : file_(path, io::File::Mode::read), bytes_(file_.size()) {
    std::array<std::uint8_t, 2> sign{};
    if (bytes_ >= std::ssize(sign)) file_.read_at(0, sign.data(), std::ssize(sign));
    compressed_ = sign == std::array<std::uint8_t, 2>{0x1f, 0x8b};
    if (!compressed_) return;
    input_.resize(input_bytes);
    ensure(inflateInit2(&zlib_, gzip_window_bits) == Z_OK, "zlib: out of memory");
  }
  ~Stream() {
    if (compressed_) inflateEnd(&zlib_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  bool compressed() const { return compressed_; }
  std::int64_t bytes() const { return bytes_; }
  /// Returns what is wrong with the compressed data so far; empty: nothing.
  const std::string& problem() const { return problem_; }

  /// Fills `out` and returns the number of bytes, which is smaller only at the end of the file or
  /// before damage.
  std::size_t read(std::span<std::byte> out) {
    if (compressed_) return unpack(out);
    const std::size_t part = static_cast<std::size_t>(
        std::min(bytes_ - position_, static_cast<std::int64_t>(out.size())));
    file_.read_at(position_, out.data(), static_cast<std::int64_t>(part));
    position_ += static_cast<std::int64_t>(part);
    return part;
  }

  /// Returns to the beginning.
  void rewind() {
    position_ = 0;
    problem_.clear();
    is_in_member_ = true;
    is_padded_ = false;
    zlib_.avail_in = 0;
    if (compressed_) inflateReset(&zlib_);
  }

 private:
  std::size_t unpack(std::span<std::byte> out) {
    std::size_t done = 0;
    while (done < out.size() && problem_.empty()) {
      if (zlib_.avail_in == 0 && !fill()) {
        if (is_in_member_) problem_ = "its compressed data are cut short";
        break;
      }
      if (!is_in_member_ && !begin_member()) continue;
      const auto part = static_cast<uInt>(
          std::min<std::size_t>(out.size() - done, std::numeric_limits<uInt>::max()));
      zlib_.next_out = reinterpret_cast<Bytef*>(out.data() + done);
      zlib_.avail_out = part;
      const int status = inflate(&zlib_, Z_NO_FLUSH);
      done += part - zlib_.avail_out;
      if (status == Z_STREAM_END)
        is_in_member_ = false;
      else if (status != Z_OK && status != Z_BUF_ERROR)
        problem_ = zlib_.msg == nullptr ? "its compressed data are wrong" : zlib_.msg;
    }
    return done;
  }

  /// Begins the member that follows another one, or passes over zeros. Returns false at the end of
  /// the input, and if neither follows.
  bool begin_member() {
    const std::int64_t at = position_ - zlib_.avail_in;
    const std::span<const Bytef> rest(zlib_.next_in, zlib_.avail_in);
    const auto first = std::find_if(rest.begin(), rest.end(), [](Bytef byte) { return byte != 0; });
    const bool is_member = rest[0] == 0x1f && !is_padded_;
    if (is_member) {
      inflateReset(&zlib_);
      is_in_member_ = true;
      return true;
    }
    is_padded_ = true;
    zlib_.avail_in = 0;
    if (first != rest.end())
      problem_ = fmt::format(
          "the bytes from {} on, after the end of compressed data, are neither gzip data nor zeros",
          at + (first - rest.begin()));
    return false;
  }

  /// Reads the next part of the file. Returns false at its end.
  bool fill() {
    const std::int64_t part =
        std::min(bytes_ - position_, static_cast<std::int64_t>(input_.size()));
    file_.read_at(position_, input_.data(), part);
    position_ += part;
    zlib_.next_in = input_.data();
    zlib_.avail_in = static_cast<uInt>(part);
    return part > 0;
  }

  io::File file_;
  std::int64_t bytes_, position_ = 0;  ///< position: in the file, behind `input_`
  bool compressed_ = false;
  bool is_in_member_ = true, is_padded_ = false;
  std::vector<Bytef> input_;
  z_stream zlib_{};
  std::string problem_;
};

GzipReader::GzipReader(const std::string& path)
    : path_(path), stream_(std::make_unique<Stream>(path)) {
  if (compressed()) check_content();
}

/// Throws InputError if the content is of a form that this program would have to unpack again.
void GzipReader::check_content() {
  std::string begin(io::form_bytes, '\0');
  begin.resize(stream_->read(std::as_writable_bytes(std::span(begin))));
  stream_->rewind();  // read() finds damage
  content_form_ = io::recognize_content(begin);
  const bool is_packed = content_form_ && (content_form_->kind == io::FileForm::Kind::gzip ||
                                           content_form_->kind == io::FileForm::Kind::packed);
  validate(!is_packed, "{}: is packed twice: the gzip file holds {}; unpack it once (gunzip)",
           path_, is_packed ? content_form_->name : "");
}

GzipReader::~GzipReader() = default;
GzipReader::GzipReader(GzipReader&&) noexcept = default;

bool GzipReader::compressed() const { return stream_->compressed(); }

std::int64_t GzipReader::file_bytes() const { return stream_->bytes(); }

std::size_t GzipReader::read(std::span<std::byte> out) {
  // In parts, so that little is unpacked beyond the limit.
  constexpr std::size_t part_bytes = std::size_t{1} << 26;
  std::size_t done = 0;
  while (done < out.size()) {
    const std::size_t got =
        stream_->read(out.subspan(done, std::min(out.size() - done, part_bytes)));
    validate(stream_->problem().empty(), "{}: is damaged: {}", path_, stream_->problem());
    if (got == 0) break;
    done += got;
    unpacked_bytes_ += static_cast<std::int64_t>(got);
    if (compressed()) check_unpacked_bytes(path_, file_bytes(), unpacked_bytes_);
  }
  return done;
}

}  // namespace trireme::data
