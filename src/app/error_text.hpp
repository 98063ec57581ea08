#pragma once

#include <string>

namespace trireme::app {

/// An error's message as the terminal shows it: "trireme: error: ...". A message whose lines say
/// themselves where each mistake is, as a deck's do ("deck.toml:17:9: ...", "--set a.b=c: ..."), is
/// left as it is.
std::string error_text(const std::string& message);

}  // namespace trireme::app
