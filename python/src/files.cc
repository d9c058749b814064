// SPDX-License-Identifier: Apache-2.0
#include "files.h"

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <qkv/app/array_file.h>
#include <qkv/app/kv_cache_file.h>
#include <qkv/app/utf8.h>
#include <qkv/tensor.h>

#include "file_calls.h"
#include "gil.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

// Returns f(), called without the GIL; errors of files become ValueError or OSError.
template <class F>
auto with_files(const F& f) {
  return with_file_errors([&] {
    const WithoutGil no_gil;
    return f();
  });
}

using Found = std::pair<const Tensor*, View>;

// The file's tensor for each parameter, with the view to write it to. Throws app::InputError if the
// file's tensors are not the parameters.
std::vector<Found> matched(const std::string& file, const std::vector<app::NamedArray>& arrays,
                           const ParameterList& list) {
  std::vector<Found> found;
  std::string expected;
  for (const NamedParameter& p : list) {
    const Tensor* tensor = nullptr;
    std::string unread;  // the type of a tensor that this library does not read
    for (const app::NamedArray& array : arrays) {
      if (array.name != p.name) continue;
      tensor = std::get_if<Tensor>(&array.array);
      if (std::holds_alternative<app::Unread>(array.array)) unread = app::describe(array.array);
    }
    if (!unread.empty()) {
      throw app::InputError(
          file, "tensor " + p.name + ": expected " + describe(p.view) + ", got " + unread);
    }
    if (tensor == nullptr) throw app::InputError(file, "tensor " + p.name + " is missing");
    if (tensor->dtype() != p.view.dtype() || !(tensor->shape() == p.view.shape())) {
      throw app::InputError(file, "tensor " + p.name + ": expected " + describe(p.view) + ", got " +
                                      describe(tensor->view()));
    }
    expected += (expected.empty() ? "" : ", ") + p.name;
    found.emplace_back(tensor, p.view);
  }
  for (const app::NamedArray& array : arrays) {
    if (std::holds_alternative<app::Strings>(array.array)) continue;  // text is metadata
    bool known = false;
    for (const NamedParameter& p : list) known = known || p.name == array.name;
    if (known) continue;
    throw app::InputError(
        file, "tensor " + app::quoted(array.name) + " is not of this layer, which has " + expected);
  }
  return found;
}

}  // namespace

void save_parameters(const nb::bytes& path, const ParameterList& list) {
  const std::string file = file_name(path);
  std::vector<app::NamedView> views;
  for (const NamedParameter& p : list) views.push_back({p.name, ConstView(p.view)});
  with_files([&] { app::write_safetensors(file, views); });
}

void load_parameters(const nb::bytes& path, const ParameterList& list) {
  const std::string file = file_name(path);
  with_files([&] {
    const std::vector<app::NamedArray> arrays = app::read_safetensors(file);
    for (const auto& [source, target] : matched(file, arrays, list)) copy(*source, target);
  });
}

void save_cache(const nb::bytes& path, const KvCache& cache) {
  const std::string file = file_name(path);
  with_files([&] { app::write_kv_cache(file, cache); });
}

KvCache read_cache(const nb::bytes& path, const KvCacheSizes* expected) {
  const std::string file = file_name(path);
  return with_files([&] {
    return expected == nullptr ? app::read_kv_cache(file) : app::read_kv_cache(file, *expected);
  });
}

}  // namespace qkv::python
