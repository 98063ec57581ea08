// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace trireme::comm {

/// An axis of a group whose ranks form a mesh: `size` positions that are `stride` ranks apart.
struct RankAxis {
  int size = 1, stride = 1;
};

}  // namespace trireme::comm
