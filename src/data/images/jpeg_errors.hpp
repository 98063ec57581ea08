// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <csetjmp>
#include <cstdio>

#include <jpeglib.h>

namespace trireme::data {

/// Errors of libjpeg: a message, and the place to continue at. Functions that call libjpeg after
/// setjmp(on_error) hold no object with a destructor.
struct JpegErrors {
  jpeg_error_mgr manager;  // first: libjpeg points to it
  std::jmp_buf on_error;
  char message[JMSG_LENGTH_MAX];
};

/// Keeps the message of an error and continues behind setjmp(); for jpeg_error_mgr::error_exit.
[[noreturn]] inline void fail(j_common_ptr jpeg) {
  auto* const errors = reinterpret_cast<JpegErrors*>(jpeg->err);
  (*jpeg->err->format_message)(jpeg, errors->message);
  std::longjmp(errors->on_error, 1);
}

}  // namespace trireme::data
