// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

#include <array>
#include <cctype>
#include <exception>
#include <string_view>
#include <utility>

#include <nanobind/nanobind.h>

#include "attention.h"

namespace qkv::python {
namespace {

struct Rename {
  std::string_view cpp, python;
};

// Names and phrases that are replaced anywhere in the text, since they have no other meaning.
constexpr std::array kAnywhere = {
    Rename{"output_gradients.weights", "dweights"},
    Rename{"output_gradients.out", "dout"},
    Rename{"output_gradients.lse", "dlse"},
    Rename{"output_gradients.state", "dstate"},
    Rename{"inputs.state", "state"},
    Rename{"saved.out", "out"},
    Rename{"saved.lse", "lse"},
    Rename{"bilinear.w", "params[\"W\"]"},
    Rename{"additive.wq", "params[\"Wq\"]"},
    Rename{"additive.wk", "params[\"Wk\"]"},
    Rename{"additive.v", "params[\"v\"]"},
    Rename{"additive.b", "params[\"b\"]"},
    Rename{"qk_norm.q", "params[\"norm_q\"]"},
    Rename{"qk_norm.k", "params[\"norm_k\"]"},
    Rename{"qk_norm.eps", "qk_norm"},
    Rename{"rotary.base", "rotary_base"},
    Rename{"rotary.width", "rotary_width"},
    Rename{"rotary.frequencies", "rotary_frequencies"},
    Rename{"rotary.q_positions", "q_positions"},
    Rename{"rotary.k_positions", "k_positions"},
    Rename{"dropout.p", "dropout"},
    Rename{"dropout.seed", "seed"},
    Rename{"top.count", "return_top"},
    Rename{"outputs name no buffer", "v is absent and no other result is requested"},
    Rename{"input_gradients name no buffer", "wanted names no gradient"},
    Rename{"output_gradients name no gradient", "dout, dlse and dweights are absent"},
};

// Names that are replaced only where they name the argument that the error is about; some are also
// ordinary words.
constexpr std::array kArgument = {
    Rename{"keep", "mask"},
    Rename{"mods[0]", "score_mod"},
    Rename{"padding", "padding_mask"},
    Rename{"alibi", "alibi_slopes"},
    Rename{"diagonal", "causal_offset"},
    Rename{"lengths", "valid_len"},  // of masked_softmax and GRU
    Rename{"dy", "dout"},
    Rename{"output_gradients.weights.rows", "rows"},
    Rename{"window.left", "window[0]"},
    Rename{"window.right", "window[1]"},
};

// The argument that requests the result of this name, or lists its queries ("weights.rows"); empty
// for other names. Errors about out, lse and row_max keep these names.
std::string_view request_for(std::string_view argument) {
  std::string_view request;
  for_each_result([&](const auto& result) {
    const bool keeps_name =
        result.name == "out" || result.name == "lse" || result.name == "row_max";
    if (keeps_name || !argument.starts_with(result.name)) return;
    const std::string_view tail = argument.substr(result.name.size());
    const bool is_rows = tail == ".rows" && result.axes == ResultAxes::kMatrix;
    if (is_rows) request = kRequests.back();
    if (tail.empty() || (tail == ".rows" && !is_rows)) request = request_of(result);
  });
  return request;
}

bool is_part_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

void replace_everywhere(std::string& text, const Rename& rename) {
  std::size_t at = 0;
  while ((at = text.find(rename.cpp, at)) != std::string::npos) {
    const std::size_t end = at + rename.cpp.size();
    const bool whole = (at == 0 || !is_part_of_name(text[at - 1])) &&
                       (end == text.size() || !is_part_of_name(text[end]));
    if (whole) text.replace(at, rename.cpp.size(), rename.python);
    at += whole ? rename.python.size() : rename.cpp.size();
  }
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error& error) {
    PyErr_SetString(error.kind() == ErrorKind::kType ? PyExc_TypeError : PyExc_ValueError,
                    python_text(error).c_str());
  }
}

}  // namespace

std::string python_text(const Error& error) {
  std::string text = error.what();
  const std::size_t at = error.function().size() + 2;
  for (const Rename& rename : kArgument) {
    if (error.argument() == rename.cpp) text.replace(at, rename.cpp.size(), rename.python);
  }
  const std::string_view request = request_for(error.argument());
  if (!request.empty()) text.replace(at, error.argument().size(), request);
  for (const Rename& rename : kAnywhere) replace_everywhere(text, rename);
  return text;
}

namespace {

// The part of the error's text after the name of the argument.
std::string detail_of(const Error& error) {
  const std::size_t before = error.function().size() + 2 + error.argument().size();
  const std::string rest = std::string(error.what()).substr(before);
  return rest.substr(rest.starts_with(' ') ? 1 : 0);
}

}  // namespace

Error of_function(const Error& error, const char* function) {
  return {function, error.argument(), detail_of(error), error.kind()};
}

Error with_names(const Error& error, const char* function,
                 std::initializer_list<std::pair<std::string_view, const char*>> names) {
  for (const auto& [cpp, python] : names) {
    if (error.argument() == cpp) return {function, python, detail_of(error), error.kind()};
  }
  return of_function(error, function);
}

Error with_note(const Error& error, const char* note) {
  const std::string detail = detail_of(error);
  const bool shows = detail.find(']') != std::string::npos;
  return {error.function(), error.argument(), detail + (shows ? note : ""), error.kind()};
}

void register_errors() { nanobind::register_exception_translator(translate); }

}  // namespace qkv::python
