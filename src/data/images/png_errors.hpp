// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>

#include <png.h>

namespace trireme::data {

/// The message of an error of libpng. Functions that call libpng after setjmp(png_jmpbuf(...)) hold
/// no object with a destructor.
struct PngErrors {
  char message[200] = "";
};

/// Keeps the message of an error and continues behind setjmp(). The error pointer of libpng is a
/// PngErrors.
[[noreturn]] inline void take_png_error(png_structp png, png_const_charp message) {
  auto* const errors = static_cast<PngErrors*>(png_get_error_ptr(png));
  std::snprintf(errors->message, sizeof errors->message, "%s", message);
  png_longjmp(png, 1);
}

inline void ignore_png_warning(png_structp, png_const_charp) {}

}  // namespace trireme::data
