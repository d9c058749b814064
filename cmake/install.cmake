# SPDX-License-Identifier: Apache-2.0
# The contents of an installed qkv: headers, libraries, the program, CMake and pkg-config files.

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/qkv)
set(pc_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY include/qkv
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h" PATTERN "app" EXCLUDE PATTERN "mpi.h" EXCLUDE)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(TARGETS qkv EXPORT qkvTargets)
install(EXPORT qkvTargets NAMESPACE qkv:: DESTINATION ${config_dir})

configure_package_config_file(cmake/qkvConfig.cmake.in qkvConfig.cmake
  INSTALL_DESTINATION ${config_dir})
set(compatibility SameMajorVersion)
if(PROJECT_VERSION_MAJOR EQUAL 0)
  set(compatibility SameMinorVersion)
endif()
write_basic_package_version_file(qkvConfigVersion.cmake COMPATIBILITY ${compatibility})
install(FILES ${PROJECT_BINARY_DIR}/qkvConfig.cmake ${PROJECT_BINARY_DIR}/qkvConfigVersion.cmake
  DESTINATION ${config_dir})

# pkg-config: the prefix as a relative path, so that an installed tree can be moved; and what a
# program that links a static library must link besides.
file(RELATIVE_PATH pc_prefix /prefix/${pc_dir} /prefix)
if(BUILD_SHARED_LIBS)
  set(pc_cflags " -DQKV_SHARED")
else()
  set(pc_libs " -pthread -ldl -lstdc++ -lm")  # -lstdc++ and -lm for programs in C
  set(pc_app_requires ", fmt, libzip, zlib, libutf8proc, sentencepiece")
endif()
configure_file(cmake/qkv.pc.in qkv.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/qkv.pc DESTINATION ${pc_dir})

if(QKV_MPI)
  install(FILES include/qkv/mpi.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qkv COMPONENT mpi)
  install(TARGETS qkv_mpi EXPORT qkvMpiTargets COMPONENT mpi)
  install(EXPORT qkvMpiTargets NAMESPACE qkv:: DESTINATION ${config_dir} COMPONENT mpi)
endif()

if(QKV_APP)
  install(DIRECTORY include/qkv/app
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/qkv
    FILES_MATCHING PATTERN "*.h")
  install(TARGETS qkv_app EXPORT qkvAppTargets)
  install(EXPORT qkvAppTargets NAMESPACE qkv:: DESTINATION ${config_dir})
  install(TARGETS qkv_tool)
  if(QKV_MPI)
    install(TARGETS qkv_ranks DESTINATION ${CMAKE_INSTALL_LIBDIR}/qkv COMPONENT mpi)
  endif()
  configure_file(cmake/qkv-app.pc.in qkv-app.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/qkv-app.pc DESTINATION ${pc_dir})
endif()
