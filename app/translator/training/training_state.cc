// SPDX-License-Identifier: Apache-2.0
#include "translator/training/training_state.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string_view>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "files/text_file.h"
#include "ranks/collective.h"

namespace qkv::app {
namespace {

// Counters that earlier versions did not write to the state file. If absent, they start at 0.
constexpr std::string_view kLaterCounters[] = {"run.line_done", "run.line_updates", "run.clipped",
                                               "run.valid_seconds"};
// The name of the best parameters' BLEU in the state file. Earlier versions did not write it; if
// absent, the BLEU is unknown.
constexpr const char* kBestBleu = "run.best_bleu";

// Calls visit(name, number) for each number in Counts; `name` is its name in the state file.
template <class Counts, class Visit>
void for_each_count(Counts& counts, const Visit& visit) {
  visit("run.epoch", counts.spent.epochs);
  visit("run.update", counts.spent.updates);
  visit("run.seconds", counts.spent.seconds);
  visit("run.batch", counts.batch);
  visit("run.line_due", counts.line_due);
  visit("run.line_done", counts.line_done);
  visit("run.tokens", counts.tokens);
  visit("run.loss", counts.loss);
  visit("run.last_loss", counts.last_loss);
  visit("run.last_norm", counts.last_norm);
  visit("run.line_seconds", counts.line_seconds);
  visit("run.line_updates", counts.line_updates);
  visit("run.clipped", counts.clipped);
  visit("run.valid_seconds", counts.valid_seconds);
}

// The arrays of a state file, looked up by name.
class ArrayFile {
 public:
  explicit ArrayFile(std::string path) : path_(std::move(path)) {
    for (NamedArray& array : read_safetensors(path_)) {
      if (auto* tensor = std::get_if<Tensor>(&array.array)) {
        tensors_.emplace(std::move(array.name), std::move(*tensor));
      } else if (std::holds_alternative<Unread>(array.array)) {
        throw InputError(path_, fmt::format("{}: expected an array of a checkpoint, got {}",
                                            app::quoted(array.name), describe(array.array)));
      }
    }
  }

  void read(const std::string& name, const View& target) const {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      throw InputError(path_,
                       fmt::format("expected an array {} {}, got none", name, describe(target)));
    }
    const Tensor& source = found->second;
    if (source.dtype() != target.dtype() || source.shape() != target.shape()) {
      throw InputError(path_, fmt::format("{}: expected {}, got {}", name, describe(target),
                                          describe(source.view())));
    }
    copy(source, target);
  }
  [[noreturn]] void refuse(const char* name, const char* rule, auto got) const {
    throw InputError(path_, fmt::format("{}: expected {}, got {}", name, rule, got));
  }
  bool holds(const std::string& name) const { return tensors_.contains(name); }
  template <class T>
  T number(const std::string& name) const {
    T value{};
    read(name, View(&value, {1}));
    return value;
  }

 private:
  std::string path_;
  std::map<std::string, Tensor> tensors_{};
};

bool all_finite(const Tensor& tensor) {
  const auto all = [](const auto& values) {
    return std::ranges::all_of(values, [](auto x) { return std::isfinite(x); });
  };
  return tensor.dtype() == DType::kFloat32 ? all(tensor.values<float>())
                                           : all(tensor.values<double>());
}

// The translator's parameters as Adam's constructor takes them. The constructor reads only names,
// shapes and types, so the parameters stand in for the gradients.
std::vector<TrainedParameter> shapes_of(Translator& translator) {
  return trained_parameters(translator, translator);
}

// Swaps the translator's parameters with the best ones; its destructor swaps them back.
class Swapped {
 public:
  Swapped(Translator& translator, TranslatorGradients& best)
      : translator_(translator), best_(best) {
    swap();
  }
  ~Swapped() { swap(); }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  void swap() {
    for_each_parameter(translator_, best_,
                       [](const auto& p, Tensor& best) { std::swap(p.value, best); });
  }

  Translator& translator_;
  TranslatorGradients& best_;
};

}  // namespace

TrainingState::TrainingState(TranslationModel initial, const AdamOptions& options,
                             EarlyStopping stops, bool with_best)
    : model(std::move(initial)),
      adam(shapes_of(model.translator), options),
      stopping(stops),
      with_best_(with_best) {
  if (with_best_) best_ = model.translator.zero_gradients();
}

void TrainingState::keep_best() {
  if (!with_best_) return;
  for_each_parameter(model.translator, best_,
                     [](const auto& p, Tensor& best) { copy(p.value, best); });
}

bool TrainingState::is_finite() const {
  bool finite = true;
  for_each_parameter(model.translator, [&](const auto& p) { finite &= all_finite(p.value); });
  return finite;
}

template <class Visit>
void TrainingState::for_each_array(const Visit& visit) {
  for_each_parameter(model.translator, [&](const auto& p) { visit("model." + p.name, p.value); });
  for (AdamMoments& moments : adam.moments()) {
    visit("adam.m." + moments.name, moments.m);
    visit("adam.v." + moments.name, moments.v);
  }
  for_each_parameter(best_, [&](const auto& p) { visit("best." + p.name, p.value); });
}

void TrainingState::save(const LockedFolder& folder) {
  write_text(folder.file(kLogFile), log);
  std::vector<NamedView> views;
  for_each_array([&](std::string name, Tensor& tensor) {
    views.push_back({std::move(name), tensor.view()});
  });
  const auto add = [&](const char* name, const auto& number) {
    views.push_back({name, ConstView(&number, {1})});
  };
  for_each_count(counts, add);
  const Quality best = stopping.best();
  const Index misses = stopping.misses();
  const auto log_bytes = std::ssize(log);
  add("run.best_loss", best.loss);
  add(kBestBleu, best.bleu);
  add("run.misses", misses);
  add("run.log_bytes", log_bytes);
  write_safetensors(folder.file(kStateFile), views);
  write_models(folder);
}

void TrainingState::write_models(const LockedFolder& folder, bool with_best) {
  if (!with_best) {
    // Leave best.safetensors, which is of a validation that the state does not have.
  } else if (with_best_ && stopping.has_best()) {
    const Swapped best(model.translator, best_);
    write_model_file(folder.file(kBestFile), model);
  } else {
    write_model_file(folder.file(kBestFile), model);
  }
  write_model_file(folder.file(kModelFile), model);
}

void TrainingState::restore(const LockedFolder& folder) {
  const std::string path = folder.file(kStateFile);
  const ArrayFile file(path);
  for_each_array([&](const std::string& name, Tensor& tensor) { file.read(name, tensor); });
  for_each_count(counts, [&](const char* name, auto& number) {
    const bool may_lack = std::ranges::find(kLaterCounters, name) != std::end(kLaterCounters);
    if (may_lack && !file.holds(name)) return;
    number = file.number<std::remove_cvref_t<decltype(number)>>(name);
    if (!(number >= 0)) file.refuse(name, "a number from 0", number);
  });
  adam.set_updates(counts.spent.updates);
  Quality best{.loss = file.number<double>("run.best_loss")};
  if (std::isnan(best.loss) || best.loss == -HUGE_VAL) {
    file.refuse("run.best_loss", "a number, or infinity", best.loss);
  }
  if (file.holds(kBestBleu)) best.bleu = file.number<double>(kBestBleu);
  const auto from_zero = [&](const char* name) {
    const auto number = file.number<Index>(name);
    if (number < 0) file.refuse(name, "a number from 0", number);
    return number;
  };
  stopping.restore(best, from_zero("run.misses"));
  const Index log_bytes = from_zero("run.log_bytes");
  log = folder.holds(kLogFile) ? read_text(folder.file(kLogFile)) : "";
  log.resize(std::min(log.size(), static_cast<std::size_t>(log_bytes)));
  write_text(folder.file(kLogFile), log);
}

void TrainingState::share(Ranks& ranks) {
  for_each_array([&](const std::string&, Tensor& tensor) {
    ranks::broadcast(ranks, ranks::bytes_of(tensor.view()));
  });
  for_each_count(counts, [&](const char*, auto& number) { ranks::broadcast(ranks, number); });
  adam.set_updates(counts.spent.updates);
  Quality best = stopping.best();
  ranks::broadcast(ranks, best);
  Index misses = stopping.misses();
  ranks::broadcast(ranks, misses);
  stopping.restore(best, misses);
}

}  // namespace qkv::app
