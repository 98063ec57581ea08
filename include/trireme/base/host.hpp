// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

/// Returns the name of this machine, from gethostname(). Throws Failure if the call fails.
std::string host_name();

/// Returns the boot id of the host and a namespace of this process, `kind` of /proc/self/ns such as
/// "pid" or "net". Two processes with the same text share the namespace. Host names do not show
/// that: several hosts or containers may have one name. Without a boot id the name replaces it.
std::string kernel_scope(const std::string& kind);

/// Returns the number of cores in the affinity mask of this process.
int available_cores();

/// Returns the cores of the affinity mask as "0,1,5"; empty if the system call fails. Ranks of one
/// host compare these texts to detect that they share cores.
std::string core_list();

/// Returns the bytes of memory that processes of this host may use: those of the machine, or fewer
/// if control groups (version 1 or 2) limit this process, as batch systems do.
std::int64_t host_memory_bytes();
/// Returns the smallest limit of memory of a process's control groups. `groups`: the text of
/// /proc/self/cgroup; `root`: where they are mounted. Returns the largest number without a limit.
std::int64_t memory_limit_of_groups(const std::string& groups, const std::string& root);

/// Returns the resident bytes of this process, shared pages included; 0 if the system does not say.
std::int64_t resident_bytes();

/// Returns the seconds since this process began, an exec included; 0 if the system does not say.
double process_age_seconds();

/// Opens /dev/null for each closed standard stream; standard output then cannot be written. Called
/// first in main(). Without it the next file that is opened, for example a checkpoint, would get
/// descriptor 0, 1 or 2 and receive the program's printed output.
void open_missing_standard_streams();

}  // namespace trireme
