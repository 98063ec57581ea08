// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/answer.hpp"
#include "trireme/data/arrays/array_form.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::data {

/// A dataset in a file of another program.
struct ArrayDataset {
  std::string path;  ///< with the leading slash
  std::string type;  ///< "float64", "int16", "text" ...
  std::vector<std::int64_t> shape;
  std::string storage;              ///< "contiguous", "chunked" or "compact"
  std::vector<std::int64_t> chunk;  ///< chunked
  bool is_compressed = false;
  double scale = 1, offset = 0;  ///< value = stored * scale + offset
  std::vector<double> missing;   ///< stored values that stand for a value that is missing
  bool is_coordinate = false;    ///< a dimension scale: the places of a dimension
  std::string problem;           ///< why it cannot be read; empty: it can
};

/// Tables [data.hdf5] and [target] that would fit a file.
struct ArrayGuess {
  ArrayForm form;
  AnswerKind answer = AnswerKind::one_class;
  std::int64_t reduction = 1;  ///< maps are smaller than inputs by this factor, in both directions
};

/// The datasets of a file of another program, and what the deck could say of it.
struct ArrayFileDescription {
  std::vector<ArrayDataset> datasets;
  std::optional<ArrayGuess> guess;  ///< none: no dataset looks like samples with targets
};

/// Returns the description of an indexed file.
ArrayFileDescription describe_array_file(const io::Hdf5Index& file);

/// Returns a line for each dataset.
std::string list_in_words(const ArrayFileDescription& description);
/// Returns a description as text for people, with the tables as TOML.
std::string to_text(const std::string& path, const ArrayFileDescription& description);

}  // namespace trireme::data
