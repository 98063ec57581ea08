// SPDX-License-Identifier: Apache-2.0
//
// The text and JSON of `trireme inspect` for files whose datasets it lists: those of other
// programs, and predictions.
#include "array_report.hpp"

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;

Json list_datasets(const data::ArrayFileDescription& arrays) {
  Json list = Json::array();
  for (const data::ArrayDataset& dataset : arrays.datasets) {
    Json entry{{"path", dataset.path}};
    if (!dataset.problem.empty()) {
      entry["problem"] = dataset.problem;
    } else {
      entry["type"] = dataset.type;
      entry["shape"] = dataset.shape;
      if (!dataset.storage.empty()) entry["storage"] = dataset.storage;
      if (!dataset.chunk.empty()) entry["chunk"] = dataset.chunk;
      entry["compressed"] = dataset.is_compressed;
      entry["scale_factor"] = dataset.scale;
      entry["add_offset"] = dataset.offset;
      entry["missing"] = dataset.missing;
    }
    list.push_back(entry);
  }
  return list;
}

/// Returns the text of an attribute of the root; empty if there is none.
std::string root_text(const io::Hdf5Index& file, const char* name) {
  return file.has_attribute("/", name) ? file.attribute_string("/", name) : "";
}

}  // namespace

Json arrays_json(const std::string& path, const data::ArrayFileDescription& arrays) {
  Json json{{"kind", "arrays"}, {"path", path}, {"datasets", list_datasets(arrays)}};
  json["hdf5"] = nullptr;
  if (arrays.guess) {
    const data::ArrayForm& form = arrays.guess->form;
    const AnswerKind answer = arrays.guess->answer;
    json["hdf5"] = {{"input", form.input}, {"target", form.target}, {"layout", form.layout}};
    json["target_kind"] = answer_of(answer).word;
    if (answer_of(answer).is_map) json["hdf5"]["target_layout"] = form.target_layout;
  }
  return json;
}

Json predictions_json(const io::Hdf5Index& file, const data::ArrayFileDescription& arrays) {
  Json json{{"kind", "predictions"}, {"path", file.path()}};
  for (const char* name : {"checkpoint", "checkpoint_digest", "split", "deck"})
    if (const std::string text = root_text(file, name); !text.empty()) json[name] = text;
  json["datasets"] = list_datasets(arrays);
  return json;
}

std::string predictions_text(const io::Hdf5Index& file, const data::ArrayFileDescription& arrays) {
  const std::string split = root_text(file, "split");
  return fmt::format("{}: predictions of {} for {}\n{}", file.path(), root_text(file, "checkpoint"),
                     split.empty() ? "the samples of files" : "the split " + split,
                     data::list_in_words(arrays));
}

}  // namespace trireme::app
