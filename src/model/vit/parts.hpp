// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "options.hpp"
#include "trireme/model/model.hpp"
#include "trireme/ops/patches.hpp"

namespace trireme::model {

/// Makes the first block: patches, class token and positions. `row_split`: ranks over which its
/// rows are split under sequence parallelism, else 1.
std::unique_ptr<Block> make_patch_embedding(const VitOptions& options,
                                            const ops::PatchRows& patches, int row_split);
/// Makes the head of one answer for a sample: pool, norm and linear classifier. `rows`: those of a
/// sample.
std::unique_ptr<Head> make_vit_head(const VitOptions& options, std::int64_t rows,
                                    std::int64_t classes);
/// Makes the head of an answer for each pixel: norm, and a linear layer that gives each patch its
/// outputs. `outputs`: the rows as patches of the map, whose channels are the outputs of a pixel.
std::unique_ptr<Head> make_vit_map_head(const VitOptions& options, const ops::PatchRows& outputs);

}  // namespace trireme::model
