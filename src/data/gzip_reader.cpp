// Reads plain and gzip files through zlib, which passes plain files through unchanged.
#include "gzip_reader.hpp"

#include <algorithm>

#include <zlib.h>

#include "trireme/base/check.hpp"
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
}

GzipReader::~GzipReader() = default;
GzipReader::GzipReader(GzipReader&&) noexcept = default;

bool GzipReader::compressed() const { return gzdirect(handle_->file) == 0; }

std::size_t GzipReader::read(std::span<std::byte> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    const auto part = static_cast<unsigned>(std::min<std::size_t>(out.size() - done, 1u << 30));
    const int got = gzread(handle_->file, out.data() + done, part);
    // The error is read after each call: zlib 1.3.2 forgets a cut-off stream at the next call.
    int fault = Z_OK;
    const char* message = gzerror(handle_->file, &fault);
    validate(fault != Z_BUF_ERROR, "{}: is damaged: its compressed data are cut short", path_);
    validate(got >= 0 && fault == Z_OK, "{}: is damaged: {}", path_, message);
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

}  // namespace trireme::data
