// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::report {

/// The texts of page.css and page.js.
extern const char *const page_css, *const page_js;

/// Returns the SHA-256 of page.js in base64, as a policy of a page names it.
std::string page_js_hash();

}  // namespace trireme::report
