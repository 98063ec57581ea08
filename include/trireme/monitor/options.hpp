#pragma once

#include "trireme/base/duration.hpp"

namespace trireme::monitor {

/// Table [monitor].
struct MonitorOptions {
  Duration every{10, Duration::Unit::steps};
  bool tensorboard = true;
};

}  // namespace trireme::monitor
