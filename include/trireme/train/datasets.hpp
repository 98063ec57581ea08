// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "trireme/comm/communicator.hpp"
#include "trireme/data/dataset.hpp"
#include "trireme/data/options.hpp"
#include "trireme/model/options.hpp"

namespace trireme::train {

/// Opens the dataset folder of a deck key (for example "data.train") on all ranks. `form`: how
/// stored samples become samples of the model.
///
/// Rank 0 indexes the shards (data::index_dataset) and broadcasts the index; the other ranks open
/// no file. Collective. Throws InputError on all ranks if the folder is missing (with key and
/// remedy), and as data::index_dataset() and data::Dataset do.
data::Dataset open_dataset(const comm::Communicator& world, const std::string& key,
                           const std::string& folder, const data::SampleForm& form,
                           bool with_checksums = false);

/// Checks that a dataset fits the deck: kind, extents, classes, channels of data.augment.normalize,
/// vocabulary. Error messages name `key` (for example "data.train") and `folder`. Throws
/// InputError.
void validate_dataset(const model::ModelOptions& model, const data::DataOptions& data,
                      const data::DatasetInfo& info, const std::string& key,
                      const std::string& folder);

/// Checks that a validation or test set has the form of the training set: the same kind and
/// extents, no additional classes or tokens. data::validate_same_meaning() compares class names and
/// tokenizers. Throws InputError.
void validate_same_form(const data::DatasetInfo& train, const data::DatasetInfo& other,
                        const std::string& key, const std::string& folder);

}  // namespace trireme::train
