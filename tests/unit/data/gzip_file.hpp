// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <gtest/gtest.h>
#include <zlib.h>

namespace trireme::data {

/// Writes a text as a gzip file.
inline void compress_to(const std::string& path, const std::string& text) {
  const gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, text.data(), static_cast<unsigned>(text.size())),
            static_cast<int>(text.size()));
  gzclose(file);
}

}  // namespace trireme::data
