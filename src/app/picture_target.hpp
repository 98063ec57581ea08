#pragma once

#include <string>

namespace trireme::app {

enum class PictureFormat { png, svg };

/// Throws InputError unless a picture may be written to this file: it does not exist, or holds such
/// a picture. `option`: the option that names the file, for messages.
void validate_picture_target(const char* option, const std::string& path, PictureFormat format);

/// Throws InputError unless the folder of a file that will be written exists. An empty name and "-"
/// are no file.
void validate_output_folder(const char* option, const std::string& path);

}  // namespace trireme::app
