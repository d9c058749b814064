# SPDX-License-Identifier: Apache-2.0
# nvcc, which compiles the CUDA kernels ahead of time. If it is missing, QKV_CUDA=ON is an error and
# QKV_CUDA=AUTO becomes OFF. Nothing else of CUDA is needed: qkv opens the driver when it runs.

# Sets `version` to the version of the program `nvcc`, such as "13.0.88", or to "" if it is no nvcc
# or does not run.
function(qkv_nvcc_version version nvcc)
  execute_process(COMMAND ${nvcc} --version
    OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE failed)
  if(failed OR NOT text MATCHES "release [0-9]+\\.[0-9]+, V([0-9]+\\.[0-9]+\\.[0-9]+)")
    set(${version} "" PARENT_SCOPE)
  else()
    set(${version} ${CMAKE_MATCH_1} PARENT_SCOPE)
  endif()
endfunction()

# For find_program: rejects an nvcc that is too old, and records it for the message.
function(qkv_is_new_nvcc is_new nvcc)
  qkv_nvcc_version(version ${nvcc})
  if(version VERSION_LESS nvcc_minimum)
    set_property(GLOBAL APPEND PROPERTY qkv_old_nvcc "${nvcc} is ${version}")
    set(${is_new} FALSE PARENT_SCOPE)
  endif()
endfunction()

# Sets QKV_NVCC, nvcc_version and nvcc_problem: why no nvcc can be used, or "".
macro(qkv_find_nvcc)
  set(nvcc_minimum 12.8)
  # scripts/cuda_env.sh installs an nvcc here, which is used if there is no other.
  file(GLOB nvcc_of_setup
    ${PROJECT_SOURCE_DIR}/.venv-cuda/lib/python3*/site-packages/nvidia/cu13/bin)
  get_filename_component(nvcc_of_variable "$ENV{CUDACXX}" DIRECTORY)
  if(QKV_NVCC AND NOT EXISTS ${QKV_NVCC})  # found earlier, and since removed
    unset(QKV_NVCC CACHE)
  endif()
  find_program(QKV_NVCC nvcc
    HINTS ${nvcc_of_variable} ENV CUDA_HOME
    PATHS ${nvcc_of_setup}
    PATH_SUFFIXES bin
    VALIDATOR qkv_is_new_nvcc
    DOC "nvcc 12.8 or newer, for QKV_CUDA")
  set(nvcc_problem "")
  get_property(old_nvcc GLOBAL PROPERTY qkv_old_nvcc)
  if(QKV_NVCC)
    qkv_nvcc_version(nvcc_version ${QKV_NVCC})
    if(nvcc_version VERSION_LESS nvcc_minimum)
      list(APPEND old_nvcc "${QKV_NVCC} is ${nvcc_version}")
    endif()
  endif()
  if(old_nvcc AND (NOT QKV_NVCC OR nvcc_version VERSION_LESS nvcc_minimum))
    list(JOIN old_nvcc ", " old_nvcc)
    set(nvcc_problem "nvcc is too old: ${old_nvcc}, and ${nvcc_minimum} is needed")
  elseif(NOT QKV_NVCC)
    string(CONCAT nvcc_problem "there is no nvcc ${nvcc_minimum} or newer on PATH, nor by CUDACXX, "
      "CUDA_HOME or QKV_NVCC")
  elseif(NOT qkv_nvcc_tried STREQUAL "${QKV_NVCC} ${CMAKE_CXX_COMPILER}")
    # nvcc runs the library's compiler, and refuses versions of it that it does not know.
    set(tried ${PROJECT_BINARY_DIR}/CMakeFiles/qkv_nvcc)
    file(WRITE ${tried}.cu "#include <cstdint>\n__global__ void kernel(std::uint32_t*) {}\n")
    execute_process(
      COMMAND ${QKV_NVCC} -ccbin ${CMAKE_CXX_COMPILER} -std=c++20 -arch=sm_90a -fatbin
        ${tried}.cu -o ${tried}.fatbin
      OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE failed)
    if(failed)
      set(nvcc_problem "${QKV_NVCC} does not work with ${CMAKE_CXX_COMPILER}:\n${text}")
    else()
      set(qkv_nvcc_tried "${QKV_NVCC} ${CMAKE_CXX_COMPILER}" CACHE INTERNAL "")
    endif()
  endif()
endmacro()

if(QKV_CUDA)
  qkv_find_nvcc()
  if(nvcc_problem AND NOT QKV_CUDA STREQUAL "AUTO")
    message(FATAL_ERROR "QKV_CUDA=${QKV_CUDA}: ${nvcc_problem}. QKV_CUDA=ON scripts/setup.sh test "
      "installs one into .venv-cuda; QKV_CUDA=OFF builds without CUDA kernels.")
  elseif(nvcc_problem)
    message(STATUS "CUDA kernels: none: ${nvcc_problem}")
    set(QKV_CUDA OFF)
  else()
    message(STATUS "CUDA kernels: by ${QKV_NVCC} ${nvcc_version}")
  endif()
else()
  message(STATUS "CUDA kernels: none: QKV_CUDA=OFF")
endif()
