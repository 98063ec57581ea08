// SPDX-License-Identifier: Apache-2.0
#pragma once

// Matrix products of attention tiles on Intel AMX. An AMX register holds 16 rows of 64 bytes.

#include "attention_bfloat16.hpp"

#if defined(__AMX_BF16__) && defined(TRIREME_HAVE_BFLOAT16_PRODUCTS) && defined(__linux__)
#define TRIREME_HAVE_AMX 1

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace trireme::ops::cpu {

/// The unit of AMX for Bfloat16Products.
struct AmxUnit {
  static constexpr int strip_keys = 32;

  /// Returns whether the processor has AMX and Linux permits this process to use it ("dynamically
  /// enabled features" of x86).
  static bool available() {
    static const bool permitted = [] {
      // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA
      constexpr long request_permission = 0x1023, tile_data = 18;
      unsigned a = 0, b = 0, c = 0, d = 0;
      return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & bit_AMX_BF16) != 0 &&
             syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
    }();
    return permitted;
  }

  /// A thread's setup: configures all registers as 16 rows of 64 bytes; releases the unit at its
  /// end.
  struct ThreadSetup {
    ThreadSetup() {
      struct alignas(64) {
        std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } configuration;
      static_assert(sizeof configuration == 64);
      asm volatile("" ::"m"(configuration) : "memory");
      _tile_loadconfig(&configuration);
    }
    ~ThreadSetup() { _tile_release(); }
    ThreadSetup(const ThreadSetup&) = delete;
    ThreadSetup& operator=(const ThreadSetup&) = delete;
  };

  /// Computes c [rows, columns] float32 = or += a b over `depth` steps. All three are multiples of
  /// 32, so that four registers of sums share the operands.
  template <bool add>
  static void multiply(const BFloat16* a, std::int64_t a_stride, const BFloat16* b,
                       std::int64_t b_stride, float* c, std::int64_t c_stride, int rows,
                       int columns, int depth) {
    asm volatile("" ::: "memory");  // the intrinsics do not declare that they read memory
    for (int m = 0; m < rows; m += 32) {
      for (int n = 0; n < columns; n += 32) {
        float* const upper = c + m * c_stride + n;
        float* const lower = upper + 16 * c_stride;
        if constexpr (add) {
          _tile_loadd(0, upper, c_stride * 4);
          _tile_loadd(1, upper + 16, c_stride * 4);
          _tile_loadd(2, lower, c_stride * 4);
          _tile_loadd(3, lower + 16, c_stride * 4);
        } else {
          _tile_zero(0);
          _tile_zero(1);
          _tile_zero(2);
          _tile_zero(3);
        }
        for (int k = 0; k < depth; k += 32) {
          const BFloat16* const left = a + m * a_stride + k;
          const BFloat16* const right = b + k / 2 * b_stride + n * 2;
          _tile_loadd(4, left, a_stride * 2);
          _tile_loadd(6, right, b_stride * 2);
          _tile_loadd(5, left + 16 * a_stride, a_stride * 2);
          _tile_loadd(7, right + 32, b_stride * 2);
          _tile_dpbf16ps(0, 4, 6);
          _tile_dpbf16ps(1, 4, 7);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, upper, c_stride * 4);
        _tile_stored(1, upper + 16, c_stride * 4);
        _tile_stored(2, lower, c_stride * 4);
        _tile_stored(3, lower + 16, c_stride * 4);
      }
    }
    asm volatile("" ::: "memory");
  }
};

using AmxProducts = Bfloat16Products<AmxUnit>;

}  // namespace trireme::ops::cpu

#endif
