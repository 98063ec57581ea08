// SPDX-License-Identifier: Apache-2.0
//
// Finds the ranks that do the same (color refinement). Called by prove(), which then looks at one
// rank of each class.
//
// 1. Make the groups of all ranks from the splits of parallel::Mesh.
// 2. Ranks start with the class of their program, and of their position in groups whose messages
//    name positions.
// 3. Separate ranks whose groups have members of different classes, until nothing changes.

#include "rank_classes.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace trireme::plan {
namespace {

constexpr std::size_t num_kinds = RankClasses::num_kinds;

/// Returns which kinds of groups carry messages. Their calls name positions, so positions count.
std::array<bool, num_kinds> kinds_with_messages(const RankPrograms& programs) {
  std::array<bool, num_kinds> result{};
  for (const Program& program : programs.programs)
    for (const ProgramCall& call : program)
      if (call.is_message()) result[static_cast<std::size_t>(call.group)] = true;
  return result;
}

/// Numbers different keys in the order in which they appear.
template <class Key>
class Numbers {
 public:
  std::int32_t of(Key key) {
    return known_.try_emplace(std::move(key), static_cast<std::int32_t>(known_.size()))
        .first->second;
  }
  std::size_t size() const { return known_.size(); }

 private:
  std::map<Key, std::int32_t> known_;
};

using Classes = std::vector<std::int32_t>;  // by rank

Classes members_of(const std::vector<std::int32_t>& ranks, const Classes& classes) {
  Classes members;
  for (const std::int32_t rank : ranks) members.push_back(classes[static_cast<std::size_t>(rank)]);
  return members;
}

/// Sets the first class of each rank, by its program and its positions in groups with messages.
/// Returns the number of classes.
std::size_t find_first_classes(const RankPrograms& programs, const std::vector<KindGroups>& kinds,
                               Classes& classes) {
  const std::array<bool, num_kinds> has_messages = kinds_with_messages(programs);
  Numbers<std::vector<std::int32_t>> numbers;
  for (std::size_t rank = 0; rank < classes.size(); ++rank) {
    std::vector<std::int32_t> key{programs.program_of_rank[rank]};
    for (std::size_t kind = 0; kind < num_kinds; ++kind)
      if (has_messages[kind]) key.push_back(kinds[kind].position_in[rank]);
    classes[rank] = numbers.of(std::move(key));
  }
  return numbers.size();
}

/// Divides the classes once, by the classes of the members of each rank's groups. Returns the
/// number of classes. A new class lies within an old one, so an equal number means that nothing
/// changed.
std::size_t refine(const std::vector<KindGroups>& kinds, Classes& classes) {
  std::vector<Classes> surroundings(num_kinds);  // by kind and group
  for (std::size_t kind = 0; kind < num_kinds; ++kind) {
    Numbers<Classes> numbers;
    for (const auto& group : kinds[kind].ranks)
      surroundings[kind].push_back(numbers.of(members_of(group, classes)));
  }
  Numbers<std::array<std::int32_t, num_kinds + 1>> numbers;
  for (std::size_t rank = 0; rank < classes.size(); ++rank) {
    std::array<std::int32_t, num_kinds + 1> key{};
    for (std::size_t kind = 0; kind < num_kinds; ++kind) {
      const std::int32_t group = kinds[kind].group_of[rank];
      key[kind] = group < 0 ? -1 : surroundings[kind][static_cast<std::size_t>(group)];
    }
    key[num_kinds] = classes[rank];
    classes[rank] = numbers.of(key);
  }
  return numbers.size();
}

}  // namespace

KindGroups groups_of(const parallel::MeshShape& shape, parallel::MeshGroup kind) {
  KindGroups result;
  const int ranks = shape.ranks();
  result.group_of.assign(static_cast<std::size_t>(ranks), -1);
  result.position_in = result.group_of;
  std::map<int, std::vector<std::pair<int, std::int32_t>>> members;  // by color
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const parallel::MeshSplit split = parallel::split_of(shape, rank, kind);
    if (split.size > 1 && split.color >= 0) members[split.color].emplace_back(split.key, rank);
  }
  for (auto& [color, list] : members) {
    std::sort(list.begin(), list.end());
    std::vector<std::int32_t>& group = result.ranks.emplace_back();
    for (const auto& [key, rank] : list) {
      result.group_of[static_cast<std::size_t>(rank)] =
          static_cast<std::int32_t>(result.ranks.size()) - 1;
      result.position_in[static_cast<std::size_t>(rank)] = static_cast<std::int32_t>(group.size());
      group.push_back(rank);
    }
  }
  return result;
}

RankClasses find_classes(const RankPrograms& programs) {
  const auto ranks = static_cast<std::size_t>(programs.shape.ranks());
  // 1. The groups.
  std::vector<KindGroups> kinds;
  for (const parallel::MeshGroup kind : parallel::mesh_groups)
    kinds.push_back(groups_of(programs.shape, kind));
  // 2. The classes.
  Classes classes(ranks);
  std::size_t count = find_first_classes(programs, kinds, classes);
  for (std::size_t before = 0; before != count;) {
    before = count;
    count = refine(kinds, classes);
  }
  // 3. The result: ranks ascend, so the first of a class is met first.
  RankClasses result;
  result.classes.resize(count);
  result.group_of.resize(count);
  result.position_in.resize(count);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    RankClasses::Class& of = result.classes[static_cast<std::size_t>(classes[rank])];
    if (of.ranks++ == 0) {
      of.rank = static_cast<int>(rank);
      of.program = programs.program_of_rank[rank];
    }
  }
  for (std::size_t kind = 0; kind < num_kinds; ++kind) {
    std::map<Classes, std::int32_t> known;
    std::vector<std::int32_t> number_of(kinds[kind].ranks.size());
    for (std::size_t group = 0; group < number_of.size(); ++group) {
      Classes members = members_of(kinds[kind].ranks[group], classes);
      const auto [at, is_new] =
          known.try_emplace(members, static_cast<std::int32_t>(result.groups.size()));
      number_of[group] = at->second;
      if (is_new) {
        Classes distinct = members;
        std::sort(distinct.begin(), distinct.end());
        distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
        result.groups.push_back({.kind = parallel::mesh_groups[kind],
                                 .members = std::move(members),
                                 .distinct = std::move(distinct),
                                 .groups = 0});
      }
      ++result.groups[static_cast<std::size_t>(at->second)].groups;
    }
    for (std::size_t c = 0; c < count; ++c) {
      const auto rank = static_cast<std::size_t>(result.classes[c].rank);
      const std::int32_t group = kinds[kind].group_of[rank];
      result.group_of[c][kind] = group < 0 ? -1 : number_of[static_cast<std::size_t>(group)];
      result.position_in[c][kind] = kinds[kind].position_in[rank];
    }
  }
  result.class_of_rank = std::move(classes);
  return result;
}

}  // namespace trireme::plan
