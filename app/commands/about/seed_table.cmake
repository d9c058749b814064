# SPDX-License-Identifier: Apache-2.0

# Adds the sources behind "commands/about/seed_numbers.h" to a target. The table
# tests/seed_numbers.tsv is built in, so that the program and its test see the same rows; a changed
# table reconfigures the build.
function(qkv_seed_numbers target)
  set(room ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  set(table ${PROJECT_SOURCE_DIR}/tests/seed_numbers.tsv)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(READ ${table} QKV_SEED_TABLE)
  configure_file(${room}/seed_table.cc.in ${CMAKE_CURRENT_BINARY_DIR}/seed_table.cc @ONLY)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/app)
  qkv_component(${target} seeds
    ${room}/seed_expressions.cc
    ${room}/seed_numbers.cc
    ${CMAKE_CURRENT_BINARY_DIR}/seed_table.cc)
endfunction()
