// SPDX-License-Identifier: Apache-2.0
//
// Acquires and releases the run folder. Called by train::train() and by the range test, before the
// data are opened; rank 0 acts, and all ranks agree on errors.
#include "trireme/train/run/held_run_folder.hpp"

#include <filesystem>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5.hpp"
#include "trireme/monitor/prometheus.hpp"

namespace trireme::train {

void validate_run_folder_place(const deck::Deck& deck) {
  std::error_code error, ignored;
  (void)std::filesystem::status(monitor::RunFolder(deck.run.folder).checkpoints(), error);
  validate(error != std::errc::filename_too_long,
           "run.folder = \"{}\": cannot be created: {}; give a shorter name",
           printable(deck.run.folder, 200), error.message());
  for (const auto& [key, folder] :
       {std::pair("data.train", deck.data.train),
        std::pair("data.validation", deck.data.validation), std::pair("data.test", deck.data.test)})
    validate(folder.empty() || !std::filesystem::equivalent(deck.run.folder, folder, ignored),
             "run.folder = \"{}\": is also the folder of {}, which a run must not change; name "
             "another folder",
             deck.run.folder, key);
}

HeldRunFolder acquire_run_folder(const deck::Deck& deck, const comm::Environment& environment,
                                 Log& log) {
  const monitor::RunFolder files(deck.run.folder);
  HeldRunFolder folder;
  const auto create = [&](const std::string& path) {
    const std::error_code error = folder.new_folders.create(path);
    validate(!is_path_error(error.value()),
             "run.folder = \"{}\": cannot be created: {}; name a folder that may be written",
             deck.run.folder, error.message());
    ensure(!error, "run.folder = \"{}\": cannot be created: {}", deck.run.folder, error.message());
  };
  comm::together(environment.world(), [&] {
    if (environment.world().rank() != 0) return;
    validate_run_folder_place(deck);
    std::error_code error;
    folder.is_new = !std::filesystem::exists(deck.run.folder, error);
    validate(
        !folder.is_new ||
            !std::filesystem::is_symlink(std::filesystem::symlink_status(deck.run.folder, error)),
        "run.folder = \"{}\": is a link to something that does not exist; restore its target, or "
        "name another folder",
        deck.run.folder);
    validate(folder.is_new || std::filesystem::is_directory(deck.run.folder, error),
             "run.folder = \"{}\": is not a folder; name another one", deck.run.folder);
    const std::filesystem::path checkpoints = files.checkpoints();
    const bool other =
        std::filesystem::exists(std::filesystem::symlink_status(checkpoints, error)) &&
        !std::filesystem::is_directory(checkpoints, error);
    validate(!other,
             "{}: is not a folder (a file or a broken link), but the checkpoints of "
             "the run belong there; restore the folder, or move this away",
             checkpoints.string());
    create(deck.run.folder);
    files.check_names(deck.monitor.tensorboard);
    if (!deck.monitor.prometheus.empty()) monitor::Prometheus::validate(deck.monitor.prometheus);
  });
  checkpoint::wait_for_removed_lease(environment.world(), deck.run.folder, log);
  folder.lease = checkpoint::Lease(environment.world(), deck.run.folder, log);
  comm::together(environment.world(), [&] {
    if (environment.world().rank() != 0) return;
    // Only now: a start that does not get the lease must not remove this folder from under another.
    create(files.checkpoints());
    log.open_file(files.log());
    files.rename_other_kinds(log);
    folder.previous_end = files.previous_end(log);
    checkpoint::remove_exit_record(deck.run.folder);
  });
  return folder;
}

void check_writable(const comm::Communicator& world, const std::string& checkpoints) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    // A leftover of a killed start is removed with other files of this suffix, or here: the name
    // may also be a link to another file.
    const std::filesystem::path file = checkpoints + "/write_test.h5.tmp";
    const auto message = [&](const Error& error) {
      return fmt::format(
          "{}: no checkpoint can be written there ({}); permit writing, or name another run.folder",
          checkpoints, error.what());
    };
    std::error_code ignored;
    std::filesystem::remove(file, ignored);
    try {
      io::File(file.string(), io::File::Mode::create).close();
      // The file system may lack the locks that HDF5 asks for.
      io::Hdf5File::create(file.string(), {}).close();
      std::filesystem::remove(file, ignored);
    } catch (const Error& error) {
      std::filesystem::remove(file, ignored);
      if (error.code() == ExitCode::wrong_input) throw InputError(message(error));
      throw Failure(message(error));
    }
  });
}

void release_run_folder(HeldRunFolder& folder, const monitor::RunFolder& files) {
  if (!folder.is_new) return;  // False on ranks other than 0.
  // Only with the lease: otherwise the folder and the log are those of another start.
  if (!folder.lease.confirm()) return folder.new_folders.keep();
  folder.new_folders.remove_empty();
  std::error_code ignored;
  if (!std::filesystem::exists(files.checkpoints(), ignored))
    std::filesystem::remove(files.log(), ignored);
  folder.lease.release();
}

}  // namespace trireme::train
