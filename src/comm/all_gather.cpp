#include "all_gather.hpp"

#include <fmt/format.h>

namespace trireme::comm {

void AllGather::post(Calls& calls, int step) const {
  Range given, taken;
  int to = 0, from = 0;
  if (group_.complete()) {
    const int held = 1 << step;
    to = from = group_.partner(step);
    given = parts(group_.rank / held * held, held);
    taken = parts(from / held * held, held);
  } else {
    to = group_.after();
    from = group_.before();
    given = parts(group_.before(step), 1);
    taken = parts(group_.before(step + 1), 1);
  }
  calls.receive(std::span(data_ + taken.begin, data_ + taken.end), from);
  calls.send(std::span(data_ + given.begin, data_ + given.end), to);
}

std::string AllGather::describe() const {
  return fmt::format("{} bytes over {} ranks", bytes_, group_.size);
}

}  // namespace trireme::comm
