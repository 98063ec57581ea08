# SPDX-License-Identifier: Apache-2.0
#
# Writes a header with the git revision of the sources. The build runs it each time
# (src/train/CMakeLists.txt); the header changes only with the revision, and then one file is
# compiled.
#
# cmake -D GIT=GIT-PROGRAM -D SOURCES=FOLDER -D HEADER=FILE -P write_revision.cmake
#
# The revision is "unknown" without git, and if SOURCES is not itself the top of a repository: the
# sources of a release may have been unpacked inside another one.
cmake_minimum_required(VERSION 3.25)
set(revision "")
if(GIT AND EXISTS ${SOURCES}/.git)
  execute_process(COMMAND ${GIT} --no-optional-locks describe --always --dirty
    WORKING_DIRECTORY ${SOURCES}
    OUTPUT_VARIABLE revision OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
if(NOT revision)
  set(revision "unknown")
endif()
file(CONFIGURE OUTPUT ${HEADER} CONTENT
  "#pragma once\n\n#define TRIREME_REVISION \"@revision@\"\n" @ONLY)
