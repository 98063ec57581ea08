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
/// Makes the head: pool, norm and linear classifier. `rows`: those of a sample.
std::unique_ptr<Head> make_vit_head(const VitOptions& options, std::int64_t rows,
                                    std::int64_t classes);

}  // namespace trireme::model
