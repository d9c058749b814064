# SPDX-License-Identifier: Apache-2.0

# Adds the sources of "commands/about/seed_numbers.h" to a target. The table tests/seed_numbers.tsv
# is built in, so that the program and its test see the same rows; if it changes, the build is
# configured anew.
function(qkv_seed_numbers target)
  set(folder ${CMAKE_CURRENT_FUNCTION_LIST_DIR})
  set(table ${PROJECT_SOURCE_DIR}/tests/seed_numbers.tsv)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(READ ${table} QKV_SEED_TABLE)
  configure_file(${folder}/seed_table.cc.in ${CMAKE_CURRENT_BINARY_DIR}/seed_table.cc @ONLY)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/app)
  qkv_component(${target} seeds
    ${folder}/seed_expressions.cc
    ${folder}/seed_numbers.cc
    ${CMAKE_CURRENT_BINARY_DIR}/seed_table.cc)
endfunction()
