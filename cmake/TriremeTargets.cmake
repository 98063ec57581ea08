# SPDX-License-Identifier: Apache-2.0
#
# Functions that define the libraries and the tests, and the compiler flags that all of them share.

add_library(trireme_flags INTERFACE)
# -Wno-restrict: GCC bug 105329, false alarms in std::string.
set(old_gcc $<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>)
target_compile_options(trireme_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>
  $<$<AND:${old_gcc},$<COMPILE_LANGUAGE:CXX>>:-Wno-restrict>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:${TRIREME_WERROR}>>:-Werror>)
target_compile_definitions(trireme_flags INTERFACE $<$<BOOL:${TRIREME_CONTRACTS}>:TRIREME_CONTRACTS>
  $<$<BOOL:${TRIREME_FIXED_LOCATIONS}>:TRIREME_FIXED_LOCATIONS>)
# Tells a target whether this is a CUDA build. Targets without it are compiled equally in both
# builds, so ccache compiles them once.
add_library(trireme_cuda_flag INTERFACE)
target_compile_definitions(trireme_cuda_flag INTERFACE
  $<$<BOOL:${TRIREME_ENABLE_CUDA}>:TRIREME_ENABLE_CUDA>)
if(TRIREME_SANITIZE)
  # AddressSanitizer finds a null pointer or too small an object when it is used; checks before that
  # take a fifth of the time of compiling.
  set(sanitize_options "-fsanitize=address,undefined;-fno-sanitize=null,object-size,vptr;\
-fno-sanitize-recover=undefined;-fno-omit-frame-pointer")
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13.3)
    # The search for uses of the stack after a return, which g++ 13 does by default, places vectors
    # of 64 bytes at wrong addresses before 13.3 (GCC's bug 110027).
    list(APPEND sanitize_options "--param=asan-use-after-return=0")
  endif()
  target_compile_options(trireme_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CXX>:${sanitize_options}>")
  target_link_options(trireme_flags INTERFACE -fsanitize=address,undefined)
endif()
# trireme_checks(NAME options...): a library of options that change the checks of sanitizers. A
# target links it after trireme_flags, whose options these follow; own ones would precede them.
function(trireme_checks name)
  add_library(${name} INTERFACE)
  if(TRIREME_SANITIZE)
    target_compile_options(${name} INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${ARGN}>")
  endif()
endfunction()
# The code of tests compiles in 60 % of the time without these checks.
trireme_checks(trireme_checks_of_tests
  -fno-sanitize=alignment -fno-sanitize-address-use-after-scope)
if(TRIREME_LIBFUZZER)
  target_compile_options(trireme_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# trireme_library(NAME SOURCES ... [PUBLIC targets...] [PRIVATE targets...])
#
# Defines one library for each folder, with the target trireme::NAME. Headers are in
# include/trireme/NAME, private ones in src/NAME (included as "NAME/topic/header.hpp"). The linked
# targets are its dependencies, which scripts/check_layers.py checks. Libraries are static; in a
# stage those that the kernel tests share are not.
set(shared_in_stage base device tensor kernels ops)
# Tests with sanitizers spend their time in these libraries. The others compile faster with -Og.
set(computing kernels ops)
# A run spends no time in these, and -O1 compiles them in 60 % of the time of -O3.
set(quick keys deck monitor report)
function(trireme_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(TRIREME_STAGE AND name IN_LIST shared_in_stage)
    add_library(trireme_${name} SHARED ${ARG_SOURCES})
    set_target_properties(trireme_${name} PROPERTIES DEFINE_SYMBOL "")
  else()
    add_library(trireme_${name} STATIC ${ARG_SOURCES})
  endif()
  add_library(trireme::${name} ALIAS trireme_${name})
  cmake_path(GET CMAKE_CURRENT_SOURCE_DIR PARENT_PATH sources)
  target_include_directories(trireme_${name} PUBLIC ${PROJECT_SOURCE_DIR}/include
    PRIVATE ${sources})
  target_link_libraries(trireme_${name} PUBLIC ${ARG_PUBLIC} PRIVATE trireme_flags ${ARG_PRIVATE})
  if(name IN_LIST quick)
    target_compile_options(trireme_${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  endif()
  if(TRIREME_SANITIZE AND NOT TRIREME_LIBFUZZER AND NOT name IN_LIST computing)
    target_compile_options(trireme_${name} PRIVATE -Og)
  endif()
endfunction()

# Environment of mpirun in tests: allows root and more ranks than cores, and lets idle ranks yield.
set(TRIREME_MPI_ENVIRONMENT
  OMPI_ALLOW_RUN_AS_ROOT=1
  OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  OMPI_MCA_rmaps_base_oversubscribe=1
  PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  PRTE_MCA_mapby=:oversubscribe
  OMPI_MCA_mpi_yield_when_idle=1
  OMPI_MCA_hwloc_base_binding_policy=none
  OMP_PROC_BIND=false)

# Environment of tests with two threads. Threads that wait would spin, and take the cores of the
# tests beside them.
set(TRIREME_TWO_THREADS OMP_NUM_THREADS=2 OMP_PROC_BIND=false OMP_WAIT_POLICY=passive)

# Seconds. Ends tests that hang: beside other work a test may take ten times as long as alone.
set(TRIREME_TEST_TIMEOUT 1800)

# Runs a whole test program with its ops on `device`. Skipped if there is no such device
# (tests/support/main.cpp).
function(trireme_device_test name target device label)
  add_test(NAME ${name}.${device} COMMAND ${target})
  set_tests_properties(${name}.${device} PROPERTIES LABELS "${label}"
    TIMEOUT ${TRIREME_TEST_TIMEOUT} SKIP_RETURN_CODE 77
    ENVIRONMENT "${TRIREME_TWO_THREADS};TRIREME_TEST_DEVICE=${device}")
endfunction()

# Builds the programs of all tests without the label long (scripts/test.sh).
add_custom_target(tests_short)

# trireme_test(NAME LABEL label SOURCES ... LINK targets... [RANKS 1 2 4])
#
# Without RANKS every TEST() is one ctest case, with sanitizers the whole program. With RANKS mpirun
# starts the whole program once at each number of ranks (tests/support/mpi_main.cpp).
function(trireme_test name)
  cmake_parse_arguments(ARG "" "LABEL" "SOURCES;LINK;RANKS" ${ARGN})
  set(target test_${name})
  add_executable(${target} ${ARG_SOURCES})
  if(ARG_LABEL STREQUAL kernels)
    # test_device_form links the objects of the kernels' tests.
    set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    # Their fixture (tests/kernels/reference.hpp) calls kernels.
    list(APPEND ARG_LINK trireme::kernels)
  endif()
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests
    ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${target} PRIVATE trireme_flags ${ARG_LINK} GTest::gmock
    trireme_checks_of_tests)
  # Tests spend their time in the libraries; less optimization of their own code compiles faster.
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(TRIREME_SANITIZE AND ARG_LABEL STREQUAL unit)
    target_compile_options(${target} PRIVATE -O0)
  endif()
  # tests_LABEL builds all tests of one label: tests_unit, tests_kernels, ...
  if(NOT TARGET tests_${ARG_LABEL})
    add_custom_target(tests_${ARG_LABEL})
  endif()
  add_dependencies(tests_${ARG_LABEL} ${target})
  add_dependencies(tests_short ${target})
  if(ARG_RANKS)
    target_link_libraries(${target} PRIVATE test_mpi_main)
    foreach(ranks ${ARG_RANKS})
      add_test(NAME ${name}.ranks${ranks}
        COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} $<TARGET_FILE:${target}>)
      set_tests_properties(${name}.ranks${ranks} PROPERTIES LABELS "${ARG_LABEL}"
        TIMEOUT ${TRIREME_TEST_TIMEOUT} PROCESSORS 2
        ENVIRONMENT "${TRIREME_MPI_ENVIRONMENT};OMP_NUM_THREADS=1")
    endforeach()
  else()
    # Sanitizers look at each thread by itself.
    set(threads OMP_NUM_THREADS=1 OMP_PROC_BIND=false)
    if(ARG_LABEL STREQUAL kernels AND NOT TRIREME_SANITIZE)
      set(threads ${TRIREME_TWO_THREADS})
    endif()
    target_link_libraries(${target} PRIVATE test_main)
    if(TRIREME_SANITIZE)
      # Starting a program with sanitizers takes longer than most cases, so a program is one test.
      add_test(NAME ${name} COMMAND ${target})
      set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}"
        TIMEOUT ${TRIREME_TEST_TIMEOUT} ENVIRONMENT "${threads}")
    else()
      gtest_discover_tests(${target} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST
        DISCOVERY_TIMEOUT 600
        PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${TRIREME_TEST_TIMEOUT} ENVIRONMENT "${threads}")
    endif()
    # Tests of ops also run on every other device, as whole programs
    # (tests/support/tested_device.hpp). `ctest -L gpu` runs the tests that need a GPU.
    if(ARG_LABEL STREQUAL kernels)
      trireme_device_test(${name} ${target} emulated "kernels;long")
      if(TRIREME_ENABLE_CUDA)
        trireme_device_test(${name} ${target} cuda gpu)
      endif()
    endif()
  endif()
endfunction()
