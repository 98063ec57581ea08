// SPDX-License-Identifier: Apache-2.0
//
// to_error(): errors of the program stay as they are, paths are the user's, the rest is a failure.

#include "trireme/base/error.hpp"

#include <filesystem>
#include <new>
#include <string>
#include <system_error>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::Not;

Error of_path(std::errc code) {
  return to_error(std::filesystem::filesystem_error("cannot get file status", "/some/where",
                                                    std::make_error_code(code)));
}

TEST(ToError, AnErrorOfTheProgramIsKept) {
  InputError wrong("wrong");
  wrong.set_thrown_on_all_ranks();
  const Error error = to_error(wrong);
  EXPECT_EQ(error.code(), ExitCode::wrong_input);
  EXPECT_TRUE(error.thrown_on_all_ranks());
  EXPECT_STREQ(error.what(), "wrong");
  EXPECT_EQ(to_error(Failure("broken")).code(), ExitCode::failure);
}

TEST(ToError, APathThatCannotBeExaminedIsWrongInput) {
  for (const std::errc code : {std::errc::permission_denied, std::errc::filename_too_long,
                               std::errc::too_many_symbolic_link_levels}) {
    const Error error = of_path(code);
    EXPECT_EQ(error.code(), ExitCode::wrong_input);
    EXPECT_EQ(error.what(), "/some/where: " + std::make_error_code(code).message());
  }
  EXPECT_EQ(of_path(std::errc::io_error).code(), ExitCode::failure);
  EXPECT_EQ(of_path(std::errc::no_space_on_device).code(), ExitCode::failure);
}

TEST(ToError, OtherErrorsOfFilesKeepTheTextOfTheLibrary) {
  const std::error_code missing = std::make_error_code(std::errc::no_such_file_or_directory);
  using Caught = std::filesystem::filesystem_error;
  for (const Caught& caught :
       {Caught("cannot rename", "/a", "/b", missing), Caught("cannot get current path", missing),
        Caught("cannot copy", "/a", std::make_error_code(std::errc::no_space_on_device))}) {
    EXPECT_EQ(to_error(caught).code(), ExitCode::failure);
    EXPECT_STREQ(to_error(caught).what(), caught.what());
  }
}

TEST(ToError, AThreadThatCannotBeStartedHasTheLimits) {
  const std::error_code code = std::make_error_code(std::errc::resource_unavailable_try_again);
  const Error error = to_error(std::system_error(code));
  EXPECT_EQ(error.code(), ExitCode::failure);
  for (const std::string& part :
       {std::string("a thread cannot be started: "), code.message(), std::string("ulimit -u "),
        std::string("ulimit -v "), std::string(" threads, ")})
    EXPECT_THAT(error.what(), HasSubstr(part));
  const Error other = to_error(std::system_error(std::make_error_code(std::errc::io_error)));
  EXPECT_THAT(other.what(), Not(HasSubstr("thread")));
  EXPECT_THAT(of_path(std::errc::resource_unavailable_try_again).what(), Not(HasSubstr("ulimit")));
}

TEST(ToError, AnyOtherExceptionIsAFailure) {
  const Error error = to_error(std::bad_alloc());
  EXPECT_EQ(error.code(), ExitCode::failure);
  EXPECT_STREQ(error.what(), std::bad_alloc().what());
}

}  // namespace
}  // namespace trireme
