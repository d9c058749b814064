# SPDX-License-Identifier: Apache-2.0
"""The library qkv for Conan 2, from this checkout. It leaves out qkv_app and the program, since
Conan's index has no recipe for their dependency SentencePiece.

conan create packaging/conan -s compiler.cppstd=20
With -o "&:system_highway=True" the headers of Highway are those that are installed.
scripts/check/conan.sh builds the package in this way.
"""

import pathlib
import re

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class Qkv(ConanFile):
    name = "qkv"
    description = "Attention on CPUs, forward and backward"
    license = "Apache-2.0"
    topics = ("attention", "transformer", "simd")
    package_type = "library"
    settings = "os", "compiler", "build_type", "arch"
    options = {"shared": [True, False], "system_highway": [True, False]}
    default_options = {"shared": False, "system_highway": False}

    def _checkout(self):
        return pathlib.Path(self.recipe_folder).resolve().parents[1]

    def set_version(self):
        header = (self._checkout() / "include/qkv/version.h").read_text(encoding="utf-8")
        self.version = ".".join(re.findall(r"#define QKV_VERSION_[A-Z]+ (\d+)", header)[:3])

    def export_sources(self):
        for pattern in ("CMakeLists.txt", "LICENSE", "NOTICE", "cmake/*", "include/*", "src/*"):
            copy(self, pattern, self._checkout(), self.export_sources_folder)

    def requirements(self):
        if not self.options.system_highway:
            self.requires("highway/1.2.0", headers=True, libs=False, visible=False)

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("qkv is for Linux on x86_64 and armv8")
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.user_presets_path = False
        toolchain.cache_variables.update(
            QKV_APP="OFF", QKV_TESTS="OFF", QKV_CUDA="OFF", QKV_MPI="OFF"
        )
        if not self.options.system_highway:
            include = self.dependencies["highway"].cpp_info.aggregated_components().includedirs[0]
            toolchain.cache_variables["HWY_INCLUDE_DIR"] = include
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()
        for name in ("LICENSE", "NOTICE"):
            copy(self, name, self.source_folder, pathlib.Path(self.package_folder, "licenses"))

    def package_info(self):
        # Conan writes no CMake files: find_package finds those that qkv installs.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = ["lib/cmake/qkv"]
        self.cpp_info.libs = ["qkv"]
        self.cpp_info.system_libs = ["pthread", "dl", "m"]
        if self.options.shared:
            self.cpp_info.defines = ["QKV_SHARED"]
