#pragma once

#include <string>

namespace CLI {
class App;
class ParseError;
}  // namespace CLI

namespace trireme::app {

/// What is wrong with the command line, with the nearest command or option where one was misspelt.
std::string explain(const CLI::App& root, const CLI::ParseError& error, int argc, const char* const* argv);

}  // namespace trireme::app
