# SPDX-License-Identifier: Apache-2.0
# `cpack -G DEB`, which scripts/deb.sh calls, makes a Debian package of what is installed. The
# package leaves out qkv_mpi, since every user would have to install MPI. It depends on the versions
# of libraries on the machine that makes it, so it is for one release of Debian.

set(package_dir ${PROJECT_SOURCE_DIR}/packaging/debian)
set(package_out ${PROJECT_BINARY_DIR}/package)
set(package_revision 1)
set(package_maintainer "qkv <root@localhost>")
if(NOT "$ENV{DEBEMAIL}" STREQUAL "")  # Debian's own tools read it, too
  set(package_name "$ENV{DEBFULLNAME}")
  if(package_name STREQUAL "")
    set(package_name qkv)
  endif()
  set(package_maintainer "${package_name} <$ENV{DEBEMAIL}>")
endif()

# Documents that Debian demands, under its names.
string(TIMESTAMP package_date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(CONFIGURE OUTPUT ${package_out}/changelog.Debian @ONLY CONTENT
"qkv (@PROJECT_VERSION@-@package_revision@) unstable; urgency=medium

  * Version @PROJECT_VERSION@; its changes are in changelog.gz.

 -- @package_maintainer@  @package_date@
")
file(CONFIGURE OUTPUT ${package_out}/copyright @ONLY CONTENT
"Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: qkv
Comment: Licences of libraries whose headers were compiled in are in libraries/.

Files: *
Copyright: the authors of qkv
License: Apache-2.0
 On Debian systems the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0. The file NOTICE names the sentence
 pairs (CC BY 2.0 FR) that the built-in model was trained on.
")
configure_file(${package_dir}/qkv.1.in ${package_out}/qkv.1 @ONLY)
configure_file(${PROJECT_SOURCE_DIR}/CHANGELOG.md ${package_out}/changelog COPYONLY)
foreach(document changelog.Debian changelog qkv.1)
  file(ARCHIVE_CREATE OUTPUT ${package_out}/${document}.gz PATHS ${package_out}/${document}
    FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
endforeach()
install(FILES ${package_out}/changelog.Debian.gz ${package_out}/changelog.gz ${package_out}/copyright
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES ${package_out}/qkv.1.gz
  DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT debian EXCLUDE_FROM_ALL)
# Licences of libraries whose headers were compiled in.
foreach(package libhwy-dev libcli11-dev nlohmann-json3-dev)
  install(FILES /usr/share/doc/${package}/copyright
    DESTINATION ${CMAKE_INSTALL_DOCDIR}/libraries RENAME ${package}
    COMPONENT debian EXCLUDE_FROM_ALL OPTIONAL)
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME qkv)
set(CPACK_PACKAGE_CONTACT "${package_maintainer}")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL Unspecified debian)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${package_revision})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "g++ (>= 4:12), cmake (>= 3.25), pkg-config, libfmt-dev, \
libzip-dev, zlib1g-dev, libutf8proc-dev, libsentencepiece-dev, librsvg2-bin")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "attention on CPUs, forward and backward")
set(CPACK_PACKAGE_DESCRIPTION "Attention of neural networks, with gradients, for arrays in memory:
every attention weight can be inspected. The package has the static library
with its headers, CMake and pkg-config files, and the program qkv, which
draws attention, trains a translator and translates.
.
Programs that link qkv::app need the suggested packages libfmt-dev to
libsentencepiece-dev.")
include(CPack)
