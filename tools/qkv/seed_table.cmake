# SPDX-License-Identifier: Apache-2.0

# Gives a target seed_numbers.h and the table tests/seed_numbers.tsv, which is built in: the program
# and its test see the same rows, and a changed table configures the build anew.
function(qkv_seed_numbers target)
  set(QKV_SEED_DIR ${PROJECT_SOURCE_DIR}/tools/qkv)
  set(table ${PROJECT_SOURCE_DIR}/tests/seed_numbers.tsv)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${table})
  file(READ ${table} QKV_SEED_TABLE)
  configure_file(${QKV_SEED_DIR}/seed_table.cc.in ${CMAKE_CURRENT_BINARY_DIR}/seed_table.cc @ONLY)
  qkv_room(${target} seeds
    ${QKV_SEED_DIR}/seed_expressions.cc
    ${QKV_SEED_DIR}/seed_numbers.cc
    ${CMAKE_CURRENT_BINARY_DIR}/seed_table.cc)
endfunction()
