// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <qkv/app/translation_model.h>
#include <qkv/tensor.h>

#include "areas.h"
#include "arguments.h"
#include "call.h"
#include "errors.h"
#include "file_calls.h"
#include "gil.h"
#include "results.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

constexpr const char* kTranslate = "Translator.translate";
constexpr Index kMostTokens = 65536;  // of a translation

// The text of a str. Throws Error for other objects, and for text that has no UTF-8.
std::string utf8_of(nb::handle object, const std::string& argument) {
  const Name name{kTranslate, argument.c_str()};
  if (!nb::isinstance<nb::str>(object)) {
    throw_type_error(name, "must be a str, got " + describe(object));
  }
  Py_ssize_t size = 0;
  const char* const utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
  if (utf8 == nullptr) {
    PyErr_Clear();
    throw_value_error(name, "must be text that UTF-8 can hold, got " + describe(object));
  }
  return {utf8, static_cast<std::size_t>(size)};
}

// The texts of a call. argument(n) is the name of text n in messages.
struct Texts {
  std::vector<std::string> texts{};
  bool is_list = false;

  std::string argument(std::size_t n) const {
    return is_list ? "texts[" + std::to_string(n) + "]" : "texts";
  }
};

Texts texts_of(nb::handle object) {
  Texts all;
  all.is_list = nb::isinstance<nb::list>(object);
  if (!all.is_list) {
    all.texts.push_back(utf8_of(object, "texts"));
    return all;
  }
  for (const nb::handle one : nb::borrow<nb::list>(object)) {
    all.texts.push_back(utf8_of(one, all.argument(all.texts.size())));
  }
  return all;
}

Index most_tokens_of(nb::handle object) {
  if (object.is_none()) return 0;
  const Name name{kTranslate, "most_tokens"};
  const Index most = index_of(object, name);
  if (most >= 1 && most <= kMostTokens) return most;
  throw_value_error(
      name, "must be in 1 to " + std::to_string(kMostTokens) + ", got " + std::to_string(most));
}

app::UnknownTokens unknown_of(nb::handle object, const app::TranslationModel& model) {
  if (object.is_none()) return app::UnknownTokens::kCopiedIfLooked;
  const Name name{kTranslate, "unknown"};
  if (word_of(object, name, {"copy", "keep"}, "None") == 1) return app::UnknownTokens::kKept;
  if (model.translator.config().attention == app::TranslatorAttention::kNone) {
    throw_value_error(name,
                      "must not be \"copy\" for a model without attention, which attends to no "
                      "token that could be copied");
  }
  return app::UnknownTokens::kCopied;
}

// Throws Error for a text of too many tokens, Cancelled if `stop` is set.
void check_lengths(const Texts& all, const app::TranslationModel& model,
                   const std::atomic<bool>* stop) {
  for (std::size_t n = 0; n < all.texts.size(); ++n) {
    if (stop != nullptr && stop->load(std::memory_order_relaxed)) throw Cancelled(kTranslate);
    const Index tokens = std::ssize(model.tokenizer.split(all.texts[n]));
    if (tokens <= app::kMostSourceTokens) continue;
    throw Error(kTranslate, all.argument(n),
                "must have at most " + std::to_string(app::kMostSourceTokens) + " tokens, got " +
                    std::to_string(tokens));
  }
}

// A str; bytes that are not UTF-8, such as a part of a character, become U+FFFD.
nb::object decoded(const std::string& text) {
  return nb::steal(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}

nb::list strs_of(const std::vector<std::string>& texts) {
  nb::list all;
  for (const std::string& text : texts) all.append(decoded(text));
  return all;
}

nb::tuple translation_of(app::TranslatedText& text) {
  return nb::make_tuple(
      decoded(text.text), strs_of(text.source), strs_of(text.target),
      text.attention.given() ? array_owning(std::move(text.attention)) : nb::none(),
      text.log_probability, text.is_whole);
}

class BoundTranslator {
 public:
  explicit BoundTranslator(app::TranslationModel model) : model_(std::move(model)) {}

  // The translations of a list of texts, or of one text, as tuples (text, source, target, weights,
  // log_probability, is_whole).
  nb::list translate(nb::handle texts, const nb::tuple& options, nb::handle threads) const {
    const int workers = threads_of(kTranslate, threads);
    const Texts all = texts_of(texts);
    app::SearchOptions search;
    search.beam = index_of(options[0], {kTranslate, "beam"});
    search.length_penalty = number_of(options[1], {kTranslate, "length_penalty"});
    search.most_tokens = most_tokens_of(options[2]);
    const app::UnknownTokens unknown = unknown_of(options[3], model_);
    search.attention = flag_of(options[4], {kTranslate, "return_weights"});
    std::vector<app::TranslatedText> translations;
    try {
      run_watched(workers, [&](Context& context) {
        check_lengths(all, model_, context.stop_flag());
        translations = app::translate(model_, all.texts, search, context, unknown);
      });
    } catch (const Error& error) {
      throw of_function(error, kTranslate);
    }
    nb::list made;
    for (app::TranslatedText& translation : translations) made.append(translation_of(translation));
    return made;
  }

  // The sizes of the vocabularies: source, target.
  nb::tuple sizes() const { return nb::make_tuple(model_.source.size(), model_.target.size()); }

 private:
  app::TranslationModel model_;
};

BoundTranslator read_translator(const nb::bytes& path) {
  const std::string file = file_name(path);
  std::optional<app::TranslationModel> model;
  with_file_errors([&] {
    run_watched(1, [&](Context& context) {
      model.emplace(app::read_model_file(file, context.stop_flag()));
    });
  });
  return BoundTranslator(std::move(*model));
}

BoundTranslator linked_translator(nb::handle name) {
  const bool are_dates = word_of(name, {"linked_translator", "name"}, {"demo", "dates"}) == 1;
  const WithoutGil no_gil;
  return BoundTranslator(are_dates ? app::date_model() : app::english_french_model());
}

}  // namespace

void bind_translator(nb::module_& module) {
  nb::class_<BoundTranslator>(module, "Translator")
      .def("translate", &BoundTranslator::translate, nb::arg(), nb::arg(), nb::arg().none())
      .def_prop_ro("sizes", &BoundTranslator::sizes);
  module.def("read_translator", read_translator);
  module.def("linked_translator", linked_translator);
}

}  // namespace qkv::python
