// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace trireme::report {

/// The texts of page.css and page.js.
extern const char *const page_css, *const page_js;

}  // namespace trireme::report
