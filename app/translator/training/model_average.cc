// SPDX-License-Identifier: Apache-2.0
#include "translator/training/model_average.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/array_file.h>
#include <qkv/app/file_error.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>
#include <qkv/layers/parameters.h>

namespace qkv::app {
namespace {

using Arrays = std::map<std::string, Array>;

constexpr const char* kSettings = "settings";  // the array of settings: rows of name and value
// Settings that describe training and do not affect translations.
constexpr std::string_view kTrainingSettings[] = {"dropout", "label_smoothing", "longest_source"};

Arrays arrays_of(const std::string& file, const std::atomic<bool>* stop) {
  Arrays arrays;
  for (NamedArray& array : read_safetensors(file, stop)) {
    arrays.emplace(std::move(array.name), std::move(array.array));
  }
  return arrays;
}

bool is_parameter(const Array& array) {
  const auto* tensor = std::get_if<Tensor>(&array);
  return tensor != nullptr && is_real(tensor->dtype());
}

bool equal_bytes(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) return false;
  const auto bytes = static_cast<std::size_t>(a.element_count()) * size_of(a.dtype());
  return bytes == 0 || std::memcmp(a.view().data(), b.view().data(), bytes) == 0;
}

// Compares a file's arrays with those of the first file.
class Comparison {
 public:
  Comparison(const std::string& file, const std::string& first) : file_(file), first_(first) {}

  void check(const Arrays& arrays, const Arrays& of_first) const {
    // Settings are compared first because they explain other differences, then texts, since
    // vocabularies explain shapes.
    check_texts(kSettings, arrays, of_first);
    for (const auto& [name, array] : of_first) check_texts(name, arrays, of_first);
    for (const auto& [name, array] : of_first) check_numbers(name, array, arrays);
    for (const auto& [name, array] : arrays) {
      if (!of_first.contains(name)) fail(fmt::format("{} is in it, and not in", app::quoted(name)));
    }
  }

 private:
  void check_numbers(const std::string& name, const Array& array, const Arrays& arrays) const {
    const auto* want = std::get_if<Tensor>(&array);
    if (want == nullptr) return;
    const auto found = arrays.find(name);
    if (found == arrays.end()) fail(fmt::format("{} is not in it, but in", app::quoted(name)));
    const auto* tensor = std::get_if<Tensor>(&found->second);
    if (std::holds_alternative<Unread>(found->second)) {
      fail(fmt::format("{} is {}, and {} in", name, describe(found->second), describe(array)));
    }
    if (tensor == nullptr || tensor->shape() != want->shape()) {
      fail(fmt::format("{} has another shape than in", name));
    }
    if (is_real(want->dtype()) && !is_real(tensor->dtype())) {
      fail(fmt::format("{} is {}, and {} in", name, name_of(tensor->dtype()),
                       name_of(want->dtype())));
    }
    // Counts of tokens describe the training text; they do not affect the model.
    if (is_real(want->dtype()) || name.ends_with("_counts")) return;
    if (!equal_bytes(*tensor, *want)) fail(fmt::format("{} differs from that in", name));
  }

  void check_texts(const std::string& name, const Arrays& arrays, const Arrays& of_first) const {
    const Strings* texts = texts_of(arrays, name);
    const Strings* want = texts_of(of_first, name);
    if (want == nullptr) return;
    if (texts == nullptr) fail(fmt::format("{} are not in it, but in", name));
    if (name == kSettings) return check_settings(*texts, *want);
    const std::size_t most = std::min(texts->values.size(), want->values.size());
    for (std::size_t n = 0; n < most; ++n) {
      if (texts->values[n] == want->values[n]) continue;
      fail(fmt::format("{} {} is {}, and {} in", name, n, app::quoted(texts->values[n]),
                       app::quoted(want->values[n])));
    }
    if (texts->values.size() == want->values.size()) return;
    fail(fmt::format("{} are {}, and {} in", name, texts->values.size(), want->values.size()));
  }

  void check_settings(const Strings& settings, const Strings& want) const {
    const auto rows = rows_of(settings);
    for (const auto& [name, value] : rows_of(want)) {
      if (std::ranges::find(kTrainingSettings, name) != std::end(kTrainingSettings)) continue;
      const auto found = rows.find(name);
      if (found != rows.end() && found->second == value) continue;
      fail(fmt::format("{} is {}, and {} in", name, found == rows.end() ? "absent" : found->second,
                       value));
    }
  }

  static const Strings* texts_of(const Arrays& arrays, const std::string& name) {
    const auto found = arrays.find(name);
    return found == arrays.end() ? nullptr : std::get_if<Strings>(&found->second);
  }
  static std::map<std::string, std::string> rows_of(const Strings& settings) {
    std::map<std::string, std::string> rows;
    for (std::size_t n = 0; n + 1 < settings.values.size(); n += 2) {
      rows.emplace(settings.values[n], settings.values[n + 1]);
    }
    return rows;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw InputError(file_, fmt::format("cannot be averaged: {} {}", what, first_));
  }

  const std::string& file_;
  const std::string& first_;
};

void add(const std::string& file, const Arrays& arrays, std::map<std::string, Tensor>& sums) {
  for (auto& [name, sum] : sums) {
    const Tensor more = convert(std::get<Tensor>(arrays.at(name)), DType::kFloat64);
    const auto values = more.values<double>();
    if (!std::ranges::all_of(values, [](double x) { return std::isfinite(x); })) {
      throw InputError(file,
                       fmt::format("cannot be averaged: {} has a number that is not finite", name));
    }
    const auto to = sum.values<double>();
    for (std::size_t n = 0; n < to.size(); ++n) to[n] += values[n];
  }
}

}  // namespace

TranslationModel average_models(std::span<const std::string> files, const std::atomic<bool>* stop) {
  if (files.empty()) throw Error("average_models", "files", "must name at least one, got none");
  TranslationModel model = read_model_file(files[0], stop);
  const Arrays first = arrays_of(files[0], stop);
  std::map<std::string, Tensor> sums;
  for (const auto& [name, array] : first) {
    if (is_parameter(array)) {
      sums.emplace(name, Tensor(DType::kFloat64, std::get<Tensor>(array).shape()));
    }
  }
  add(files[0], first, sums);
  for (const std::string& file : files.subspan(1)) {
    const Arrays arrays = arrays_of(file, stop);
    Comparison(file, files[0]).check(arrays, first);
    add(file, arrays, sums);
  }
  const auto count = static_cast<double>(files.size());
  for_each_parameter(model.translator, [&](const BasicParameter<Tensor>& parameter) {
    Tensor& sum = sums.at(parameter.name);
    for (double& x : sum.values<double>()) x /= count;
    parameter.value = convert(sum, parameter.value.dtype());
  });
  return model;
}

}  // namespace qkv::app
