// SPDX-License-Identifier: Apache-2.0
//
// Reads plain and gzip files through zlib, which passes plain files through unchanged.
#include "gzip_reader.hpp"

#include <algorithm>

#include <zlib.h>

#include "trireme/base/check.hpp"
#include "trireme/data/unpacking.hpp"
#include "trireme/io/file.hpp"

namespace trireme::data {

struct GzipReader::Handle {
  gzFile file = nullptr;
  ~Handle() {
    if (file != nullptr) gzclose_r(file);
  }
};

GzipReader::GzipReader(const std::string& path)
    : path_(path),
      file_bytes_(io::File(path, io::File::Mode::read).size()),
      handle_(std::make_unique<Handle>()) {
  handle_->file = gzopen(path.c_str(), "rb");
  ensure(handle_->file != nullptr, "{}: cannot be opened", path);
  gzbuffer(handle_->file, 1 << 18);
  if (compressed()) check_content();
}

/// Throws InputError if the content is of a form that this program would have to unpack again.
void GzipReader::check_content() {
  std::string begin(io::form_bytes, '\0');
  const int got = gzread(handle_->file, begin.data(), static_cast<unsigned>(begin.size()));
  begin.resize(static_cast<std::size_t>(std::max(got, 0)));
  gzrewind(handle_->file);  // read() finds damage
  content_form_ = io::recognize_content(begin);
  const bool is_packed = content_form_ && (content_form_->kind == io::FileForm::Kind::gzip ||
                                           content_form_->kind == io::FileForm::Kind::packed);
  validate(!is_packed, "{}: is packed twice: the gzip file holds {}; unpack it once (gunzip)",
           path_, is_packed ? content_form_->name : "");
}

GzipReader::~GzipReader() = default;
GzipReader::GzipReader(GzipReader&&) noexcept = default;

bool GzipReader::compressed() const { return gzdirect(handle_->file) == 0; }

std::size_t GzipReader::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto part = static_cast<unsigned>(std::min<std::size_t>(out.size() - done, 1u << 26));
    const int got = gzread(handle_->file, out.data() + done, part);
    // The error is read after each call: zlib 1.3.2 forgets a cut-off stream at the next call.
    int fault = Z_OK;
    const char* message = gzerror(handle_->file, &fault);
    validate(fault != Z_BUF_ERROR, "{}: is damaged: its compressed data are cut short", path_);
    validate(got >= 0 && fault == Z_OK, "{}: is damaged: {}", path_, message);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
    unpacked_bytes_ += got;
    if (compressed()) check_unpacked_bytes(path_, file_bytes_, unpacked_bytes_);
  }
  return done;
}

}  // namespace trireme::data
