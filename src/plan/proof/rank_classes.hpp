// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "trireme/plan/proof/call_record.hpp"

namespace trireme::plan {

/// Ranks that do the same at the same time.
///
/// Two ranks are in one class if they run the same program and if, in every group, the ranks at
/// each position are of the same classes. So whatever one of them waits for, the other one waits
/// for an equal rank in an equal group, and one rank of each class stands for all of them. A rank
/// with a program of its own divides the classes of its neighbors, and no others.
struct RankClasses {
  struct Class {
    int rank = 0;  ///< The first of its ranks, which stands for them.
    std::int64_t ranks = 0;
    std::int32_t program = 0;
  };
  /// Groups of ranks whose members are of the same classes.
  struct Group {
    parallel::MeshGroup kind;
    std::vector<std::int32_t> members;   ///< The class of each rank in the group, in their order.
    std::vector<std::int32_t> distinct;  ///< The different ones among them, ascending.
    std::int64_t groups = 0;             ///< How many groups of the run are such.
  };
  static constexpr std::size_t num_kinds = parallel::mesh_groups.size();

  std::vector<Class> classes;
  std::vector<std::int32_t> class_of_rank;
  std::vector<Group> groups;
  /// By class and kind: the number of its group, -1 if it has none, and the class's position there.
  std::vector<std::array<std::int32_t, num_kinds>> group_of, position_in;
};

/// All groups of one kind.
struct KindGroups {
  std::vector<std::vector<std::int32_t>> ranks;     ///< of each group, in their order
  std::vector<std::int32_t> group_of, position_in;  ///< by rank; -1: no group
};
KindGroups groups_of(const parallel::MeshShape& shape, parallel::MeshGroup kind);

/// Finds the classes by refinement: ranks with different surroundings are separated until none are
/// left.
RankClasses find_classes(const RankPrograms& programs);

}  // namespace trireme::plan
