// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_DENSE_PATHS_H_
#define QKV_DENSE_PATHS_H_

#include <array>
#include <optional>
#include <string_view>

#include "kernels/target.h"

namespace qkv::dense {

// A path is an implementation of attention. A context may force one by its name
// (Context::force_path()).
struct Path {
  std::string_view name;
  std::optional<kernels::Target> target;  // of its kernels; none: plain loops, on any CPU
};

// The list of paths in the order in which attention tries them: for each pair product, its targets
// best first.
#define QKV_DOT(with, enumerator, name, highway) Path{"dot/" name, kernels::Target::enumerator},
#define QKV_ADDITIVE(with, enumerator, name, highway) \
  Path{"additive/" name, kernels::Target::enumerator},
// clang-format off
inline constexpr std::array kPaths{
    QKV_FOR_EACH_TARGET(QKV_DOT, )
    QKV_FOR_EACH_TARGET(QKV_ADDITIVE, )
    Path{"reference", std::nullopt},
    Path{"reference/bf16", std::nullopt},
    Path{"reference/amx", std::nullopt}};
// clang-format on
#undef QKV_DOT
#undef QKV_ADDITIVE

consteval Path path_named(std::string_view name) {
  for (const Path& path : kPaths) {
    if (path.name == name) return path;
  }
  throw "no path has this name";
}

}  // namespace qkv::dense

#endif  // QKV_DENSE_PATHS_H_
