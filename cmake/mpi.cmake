# SPDX-License-Identifier: Apache-2.0
# MPI, for attention and training over several processes. If it is missing, QKV_MPI=ON is an error
# and QKV_MPI=AUTO becomes OFF.

if(QKV_MPI)
  set(MPI_CXX_SKIP_MPICXX TRUE)  # only MPI's interface for C is used
  find_package(MPI 3.0 QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND)
    message(STATUS "MPI: ${MPI_CXX_VERSION}, by ${MPI_CXX_COMPILER}")
  elseif(NOT QKV_MPI STREQUAL "AUTO")
    message(FATAL_ERROR "QKV_MPI=${QKV_MPI}: there is no MPI 3 or newer. Debian's packages: "
      "libopenmpi-dev openmpi-bin, or libmpich-dev mpich; QKV_MPI=OFF builds without it.")
  else()
    message(STATUS "MPI: none")
    set(QKV_MPI OFF)
  endif()
else()
  message(STATUS "MPI: none: QKV_MPI=OFF")
endif()
