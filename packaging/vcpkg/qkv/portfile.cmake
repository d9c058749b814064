# SPDX-License-Identifier: Apache-2.0
# An overlay port of this checkout: vcpkg install qkv --overlay-ports=packaging/vcpkg

get_filename_component(SOURCE_PATH "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

vcpkg_check_features(OUT_FEATURE_OPTIONS feature_options FEATURES app QKV_APP)
vcpkg_cmake_configure(
  SOURCE_PATH "${SOURCE_PATH}"
  OPTIONS
    -DQKV_TESTS=OFF
    -DQKV_CUDA=OFF
    -DQKV_MPI=OFF
    ${feature_options})
vcpkg_cmake_install()
vcpkg_cmake_config_fixup(PACKAGE_NAME qkv CONFIG_PATH lib/cmake/qkv)
vcpkg_fixup_pkgconfig()
if("app" IN_LIST FEATURES)
  vcpkg_copy_tools(TOOL_NAMES qkv AUTO_CLEAN)
endif()
file(REMOVE_RECURSE "${CURRENT_PACKAGES_DIR}/debug/include" "${CURRENT_PACKAGES_DIR}/debug/share")
vcpkg_install_copyright(FILE_LIST "${SOURCE_PATH}/LICENSE" "${SOURCE_PATH}/NOTICE")
