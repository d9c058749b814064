# SPDX-License-Identifier: Apache-2.0

# Settings common to every target of the project: language, arithmetic, warnings.
function(qkv_target target)
  # An installed program finds the shared libraries in the same tree, wherever it is moved.
  set(library_path "")
  if(BUILD_SHARED_LIBS)
    file(RELATIVE_PATH up /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
    set(library_path $ORIGIN $ORIGIN/${up})
  endif()
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES
    C_STANDARD 11
    C_STANDARD_REQUIRED ON
    C_EXTENSIONS OFF
    CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden
    VISIBILITY_INLINES_HIDDEN ON
    POSITION_INDEPENDENT_CODE ON
    INSTALL_RPATH "${library_path}"
    # Only files of a component are joined, whatever CMAKE_UNITY_BUILD says: not the kernels,
    # which include themselves once for each CPU target.
    UNITY_BUILD ${QKV_UNITY}
    UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE
    ${qkv_optimisation}
    # The order of a sum is part of its meaning: no fused multiply-adds except explicit ones.
    -ffp-contract=off
    -Wall -Wextra -Wpedantic
    # A switch that lacks an enumerator does not compile.
    -Werror=switch
    -Wcast-qual $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi> -Wfloat-conversion
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast>
    $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual> -Wredundant-decls -Wshadow -Wundef
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
    # False positives on `"text" + std::string` (gcc bug 105651); may go with gcc 13.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
endfunction()

# Adds the files of a component (folder). With QKV_UNITY a component is one translation unit, so
# that its headers are parsed and its templates instantiated once; a file with its own definitions
# stays separate. A large component may be split into several units, by name; small ones may share
# one.
function(qkv_component target component)
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${component})
endfunction()

# A library of the project: its public interface, and its shared form.
function(qkv_library target)
  qkv_target(${target})
  target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/include/qkv/export.h)
  target_include_directories(${target}
    PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  if(BUILD_SHARED_LIBS)
    target_compile_definitions(${target} PUBLIC QKV_SHARED)
  endif()
  if(QKV_SANITIZE_LIBRARIES)
    target_compile_options(${target} PRIVATE
      -fsanitize=${QKV_SANITIZE_LIBRARIES} -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${QKV_SANITIZE_LIBRARIES})
  endif()
  # The part of the version that changes with the interface: CHANGELOG.md, Versions.
  set(interface ${PROJECT_VERSION_MAJOR})
  if(PROJECT_VERSION_MAJOR EQUAL 0)
    set(interface 0.${PROJECT_VERSION_MINOR})
  endif()
  set_target_properties(${target} PROPERTIES
    ARCHIVE_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
    VERSION ${PROJECT_VERSION}
    SOVERSION ${interface}
    LINKER_LANGUAGE CXX)  # a component may be headers only
endfunction()
