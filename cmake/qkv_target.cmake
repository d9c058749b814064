# SPDX-License-Identifier: Apache-2.0

# Settings common to every target of the project: language, arithmetic, warnings.
function(qkv_target target)
  # An installed program finds the shared libraries in its tree, wherever the tree is moved.
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
    # QKV_UNITY decides, not CMAKE_UNITY_BUILD, and joins only files of qkv_component(): not the
    # kernels, which include themselves once for each CPU target.
    UNITY_BUILD ${QKV_UNITY}
    UNITY_BUILD_MODE GROUP)
  target_compile_options(${target} PRIVATE
    ${qkv_optimisation}
    # The compiler must not fuse multiplications and additions, which would change the bits of sums.
    -ffp-contract=off
    -Wall -Wextra -Wpedantic
    # A switch that lacks an enumerator does not compile.
    -Werror=switch
    -Wcast-qual $<$<COMPILE_LANGUAGE:CXX>:-Wextra-semi> -Wfloat-conversion
    $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> $<$<COMPILE_LANGUAGE:CXX>:-Wold-style-cast>
    $<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual> -Wredundant-decls -Wshadow -Wundef
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes>
    # False positives on `"text" + std::string` (gcc bug 105651), not needed from gcc 13 on.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>:-Wno-restrict>)
endfunction()

# Adds files of a component (folder) to a target. With QKV_UNITY the files with the same `component`
# are one translation unit, so that headers are parsed and templates instantiated once; a file with
# its own compile definitions stays separate. The files of a large component may be divided among
# several names; small components may share a name.
function(qkv_component target component)
  target_sources(${target} PRIVATE ${ARGN})
  set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${component})
endfunction()

# Settings of a library of the project: its include folders, and its form as a shared library.
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
