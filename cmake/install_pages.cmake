# SPDX-License-Identifier: Apache-2.0
#
# Installs manual pages and completions, which the program writes itself. Runs at `cmake --install`.
# src/app/CMakeLists.txt sets:
#
# program      trireme of the build
# pages        a folder of the build for the files
# data_folder  share/, man_folder  share/man/, both relative to the prefix
file(REMOVE_RECURSE ${pages})
file(MAKE_DIRECTORY ${pages})
set(failed FALSE)
execute_process(COMMAND ${program} man ${pages} RESULT_VARIABLE result ERROR_VARIABLE why)
if(NOT result EQUAL 0)
  set(failed TRUE)
endif()
foreach(shell bash zsh)
  execute_process(COMMAND ${program} completion ${shell} OUTPUT_FILE ${pages}/${shell}
    RESULT_VARIABLE result ERROR_VARIABLE why)
  if(NOT result EQUAL 0)
    set(failed TRUE)
  endif()
endforeach()
if(failed)
  message(WARNING "${program} does not start on this machine, so there are no manual pages and no "
    "completions: ${why}")
  return()
endif()
file(GLOB man_pages ${pages}/*.1)
file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${man_folder}/man1 TYPE FILE FILES ${man_pages})
set(share ${CMAKE_INSTALL_PREFIX}/${data_folder})
file(INSTALL DESTINATION ${share}/bash-completion/completions TYPE FILE FILES ${pages}/bash
  RENAME trireme)
file(INSTALL DESTINATION ${share}/zsh/site-functions TYPE FILE FILES ${pages}/zsh RENAME _trireme)
