# SPDX-License-Identifier: Apache-2.0
#
# Finds every third-party package that the libraries link. The order matters: see the comments.
find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)

set(MPI_CXX_SKIP_MPICXX ON) # the C++ bindings (libmpi_cxx) were removed from MPI
find_package(MPI REQUIRED COMPONENTS CXX)

set(HDF5_PREFER_PARALLEL ON)
find_package(HDF5 REQUIRED COMPONENTS C)
if(HDF5_VERSION VERSION_LESS 1.10.3) # H5Dread_chunk
  message(FATAL_ERROR "HDF5 ${HDF5_VERSION} is too old; 1.10.3 or newer is needed")
endif()
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "this HDF5 has no MPI; install a parallel one "
    "(Debian: libhdf5-openmpi-dev, Spack: hdf5+mpi)")
endif()
# Checks that HDF5 uses the same MPI library as the program. With two MPI libraries the program
# would crash in the first file that all ranks write. The soname identifies the library:
# libmpi.so.40 (Open MPI), libmpich.so.12 (MPICH and its derivatives). Static libraries and compiler
# wrappers hide it; then nothing is checked.
function(mpi_libraries_of result)
  set(found "")
  foreach(library ${ARGN})
    if(TARGET ${library})
      get_target_property(library ${library} LOCATION)
    endif()
    if(library MATCHES "\\.so")
      execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${library} OUTPUT_VARIABLE text ERROR_QUIET)
      string(REGEX MATCHALL "libmpi[a-z0-9_]*\\.so\\.[0-9]+" names "${text}")
      list(APPEND found ${names})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${result} ${found} PARENT_SCOPE)
endfunction()
mpi_libraries_of(mpi_found ${MPI_CXX_LIBRARIES})
mpi_libraries_of(mpi_of_hdf5 ${HDF5_C_LIBRARIES})
string(REGEX REPLACE "[^;]*\\.so\\." "" mpi_versions "${mpi_found}")
string(REGEX REPLACE "[^;]*\\.so\\." "" mpi_versions_of_hdf5 "${mpi_of_hdf5}")
foreach(version ${mpi_versions_of_hdf5})
  if(mpi_versions AND NOT version IN_LIST mpi_versions)
    message(FATAL_ERROR
      "this HDF5 was built for another MPI library (${mpi_of_hdf5}) than the one found "
      "(${mpi_found}); "
      "name the compiler wrapper of the right one: -DHDF5_C_COMPILER_EXECUTABLE=/path/to/h5pcc")
  endif()
endforeach()

find_package(tomlplusplus REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
find_package(ZLIB REQUIRED)
find_package(JPEG REQUIRED) # libjpeg-turbo
find_package(PNG REQUIRED)
find_package(LibArchive REQUIRED)
# Optional: without SentencePiece the only tokenizer for text is "bytes".
pkg_check_modules(sentencepiece IMPORTED_TARGET sentencepiece)
if(NOT sentencepiece_FOUND)
  message(STATUS "Without SentencePiece: install libsentencepiece-dev and libprotobuf-dev")
endif()
if(sentencepiece_FOUND AND NOT sentencepiece_VERSION VERSION_LESS 0.2.1)
  # The headers use Abseil's status, which the .pc file does not name.
  pkg_check_modules(absl_status IMPORTED_TARGET absl_status)
  if(absl_status_FOUND)
    set_property(TARGET PkgConfig::sentencepiece APPEND PROPERTY INTERFACE_LINK_LIBRARIES
      PkgConfig::absl_status)
  endif()
endif()
find_package(dnnl 3 CONFIG REQUIRED) # Debian 12 has 2.6, whose interface is different
if(TRIREME_STAGE)
  # Beside our own libraries, where the programs search.
  get_target_property(dnnl_file DNNL::dnnl LOCATION)
  cmake_path(GET dnnl_file PARENT_PATH dnnl_folder)
  file(GLOB dnnl_files ${dnnl_folder}/libdnnl.so*)
  foreach(file ${dnnl_files})
    cmake_path(GET file FILENAME name)
    file(MAKE_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
    file(CREATE_LINK ${file} ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${name} SYMBOLIC)
  endforeach()
endif()

if(TRIREME_ENABLE_CUDA)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Shared) # otherwise CMake links both cudart_static and cudart
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake 3.25 does not know the flag of CUDA >= 12
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  endif()
  find_package(CUDAToolkit REQUIRED) # before Kokkos 3.4, which defines its own CUDA::cudart
  foreach(lib cudnn nccl)
    find_path(${lib}_INCLUDE ${lib}.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
    find_library(${lib}_LIBRARY ${lib} HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
    add_library(trireme::${lib} UNKNOWN IMPORTED)
    set_target_properties(trireme::${lib} PROPERTIES IMPORTED_LOCATION ${${lib}_LIBRARY}
      INTERFACE_INCLUDE_DIRECTORIES ${${lib}_INCLUDE})
  endforeach()
endif()

set(Kokkos_LAUNCH_COMPILER OFF) # otherwise Kokkos may compile with nvcc_wrapper
find_package(Kokkos REQUIRED)
message(STATUS "Kokkos ${Kokkos_VERSION} ${Kokkos_DEVICES}, HDF5 ${HDF5_VERSION}, "
  "MPI ${MPI_CXX_VERSION}, oneDNN ${dnnl_VERSION}")
if(TRIREME_ENABLE_CUDA AND NOT "CUDA" IN_LIST Kokkos_DEVICES)
  message(FATAL_ERROR "this Kokkos has no CUDA; scripts/install_deps.sh cuda makes one")
endif()
if(TRIREME_ENABLE_CUDA AND Kokkos_VERSION VERSION_LESS 4)
  # Kokkos 3.4.01 expects nvcc_wrapper as the C++ compiler. Its options are wrong for g++ and
  # missing for CMake's CUDA language. It also links the driver library, so the program would not
  # start on a login node.
  set(kokkos_cuda_options "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;-Xcompiler=-fopenmp>")
  set_target_properties(Kokkos::kokkoscore PROPERTIES
    INTERFACE_COMPILE_DEFINITIONS "" INTERFACE_COMPILE_FEATURES "" INTERFACE_LINK_OPTIONS ""
    INTERFACE_COMPILE_OPTIONS "${kokkos_cuda_options};$<$<COMPILE_LANGUAGE:CXX>:-fopenmp>"
    INTERFACE_LINK_LIBRARIES "OpenMP::OpenMP_CXX;CUDA::cudart;${CMAKE_DL_LIBS}")
  unset(CMAKE_CXX_STANDARD_DEFAULT CACHE) # 3.4.01 sets it to 98 in the cache
endif()

# trireme_kokkos is for sources that include Kokkos, trireme_kokkos_code for the one library that
# holds a static Kokkos. With shared libraries these are different: Kokkos has one state.
add_library(trireme_kokkos INTERFACE)
add_library(trireme_kokkos_code INTERFACE)
get_target_property(kokkos_type Kokkos::kokkoscore TYPE)
if(TRIREME_STAGE AND kokkos_type STREQUAL "STATIC_LIBRARY")
  foreach(kind OPTIONS DEFINITIONS)
    set_property(TARGET trireme_kokkos PROPERTY INTERFACE_COMPILE_${kind}
      $<TARGET_PROPERTY:Kokkos::kokkoscore,INTERFACE_COMPILE_${kind}>)
  endforeach()
  target_include_directories(trireme_kokkos SYSTEM INTERFACE
    $<TARGET_PROPERTY:Kokkos::kokkoscore,INTERFACE_INCLUDE_DIRECTORIES>)
  target_link_libraries(trireme_kokkos INTERFACE OpenMP::OpenMP_CXX)
  target_link_libraries(trireme_kokkos_code
    INTERFACE $<LINK_LIBRARY:WHOLE_ARCHIVE,Kokkos::kokkoscore>)
else()
  target_link_libraries(trireme_kokkos INTERFACE Kokkos::kokkos)
  target_link_libraries(trireme_kokkos_code INTERFACE Kokkos::kokkos)
endif()

if(TRIREME_BUILD_TESTS)
  find_package(GTest REQUIRED)
  if(NOT TARGET GTest::gmock)
    message(FATAL_ERROR "this GoogleTest has no GoogleMock, whose matchers the tests use; "
      "install it (Debian: libgmock-dev, Spack: googletest+gmock)")
  endif()
  include(GoogleTest)
endif()
