// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <qkv/app/utf8.h>
#include <qkv/app/word_vectors.h>
#include <qkv/tensor.h>

#include "areas.h"
#include "arguments.h"
#include "file_calls.h"
#include "numpy.h"
#include "results.h"

namespace qkv::python {
namespace {

namespace nb = nanobind;

constexpr const char* kReadVectors = "read_word_vectors";

enum class Unknown { kError, kSkip, kZero };

Unknown missing_rule(nb::handle object) {
  return static_cast<Unknown>(
      word_of(object, {kReadVectors, "unknown"}, {"error", "skip", "zero"}));
}

// An integer from 1; nothing for None.
std::optional<Index> positive_or_none(nb::handle object, const char* argument) {
  if (object.is_none()) return std::nullopt;
  const Index count = index_of(object, {kReadVectors, argument});
  if (count >= 1) return count;
  throw_value_error({kReadVectors, argument}, "must be 1 or more, got " + std::to_string(count));
}

// The UTF-8 of a str, in which surrogates stand for other bytes, as in os.fsdecode().
std::string word_text(nb::handle object, std::size_t n) {
  const std::string argument = "words[" + std::to_string(n) + "]";
  const Name name{kReadVectors, argument.c_str()};
  if (!nb::isinstance<nb::str>(object)) {
    throw_type_error(name, "must be a str, got " + describe(object));
  }
  const nb::object bytes =
      nb::steal(PyUnicode_AsEncodedString(object.ptr(), "utf-8", "surrogateescape"));
  if (!bytes.is_valid()) {
    PyErr_Clear();
    throw_value_error(name, "must be text that UTF-8 can hold, got " + describe(object));
  }
  return {PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))};
}

nb::object decoded_word(const std::string& word) {
  return nb::steal(
      PyUnicode_DecodeUTF8(word.data(), static_cast<Py_ssize_t>(word.size()), "surrogateescape"));
}

// The words without a vector, as many as fit in a line, such as '"walks" (near spellings: walk,
// walked)'; "" if there are none.
std::string missing_words(const std::vector<app::Spellings>& words, const app::WordVectors& found) {
  constexpr std::size_t kRoom = 80;  // bytes, after which no more words are listed
  constexpr std::size_t kNear = 3;   // near spellings that are listed of a word
  std::string text;
  std::size_t more = 0;
  for (std::size_t n = 0; n < words.size(); ++n) {
    const app::WordVector& word = found.words[n];
    if (word.row >= 0) continue;
    if (text.size() > kRoom) {
      ++more;
      continue;
    }
    text += (text.empty() ? "" : ", ") + app::quoted(words[n][0]);
    for (std::size_t i = 0; i < std::min(word.near.size(), kNear); ++i) {
      text += (i == 0 ? " (near spellings: " : ", ") + word.near[i];
    }
    if (!word.near.empty()) text += ")";
  }
  return text + (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

nb::tuple read_all(const std::string& file, std::optional<Index> limit, Index width) {
  app::WordTable table;
  with_file_errors([&] {
    run_watched(1, [&](Context& context) {
      app::WordVectorOptions reading;
      reading.width = width;
      reading.stop = context.stop_flag();
      table = app::read_all_word_vectors(file, limit, reading);
    });
  });
  nb::list words;
  for (const std::string& word : table.words) words.append(decoded_word(word));
  return nb::make_tuple(words, array_owning(std::move(table.vectors)));
}

nb::tuple read_some(const std::string& file, const nb::list& given, Index width, Unknown unknown) {
  std::vector<app::Spellings> wanted;
  for (const nb::handle word : given) wanted.push_back({word_text(word, wanted.size())});
  app::WordVectors found;
  with_file_errors([&] {
    run_watched(1, [&](Context& context) {
      app::WordVectorOptions reading;
      reading.width = width;
      if (unknown != Unknown::kError) reading.near = 0;
      reading.stop = context.stop_flag();
      if (wanted.empty()) {  // the first word shows the width
        const app::WordTable one = app::read_all_word_vectors(file, 1, reading);
        found.vectors = Tensor(DType::kFloat32, {0, one.vectors.size(1)});
        return;
      }
      found = app::read_word_vectors(file, wanted, reading);
      const std::string missing = missing_words(wanted, found);
      if (unknown != Unknown::kError || missing.empty()) return;
      throw app::InputError(
          file, "no vector for " + missing + "; unknown=\"skip\" or \"zero\" continues without");
    });
  });
  nb::list words;
  std::vector<Index> rows;
  for (std::size_t n = 0; n < wanted.size(); ++n) {
    if (found.words[n].row < 0 && unknown == Unknown::kSkip) continue;
    words.append(given[n]);
    rows.push_back(found.words[n].row);
  }
  View out;
  nb::object vectors =
      numpy().empty(DType::kFloat32, {std::ssize(rows), found.vectors.size(1)}, out);
  for (Index n = 0; n < std::ssize(rows); ++n) {
    const Index row = rows[static_cast<std::size_t>(n)];
    const View target = slice(out, 0, n, n + 1);
    static constexpr float kZero = 0;
    copy(row < 0 ? ConstView(&kZero, {1, 1}) : slice(found.vectors.view(), 0, row, row + 1),
         target);
  }
  return nb::make_tuple(words, vectors);
}

nb::tuple read_word_vectors_call(const nb::bytes& path, nb::handle words, nb::handle limit,
                                 nb::handle width, nb::handle unknown) {
  const std::string file = file_name(path);
  const std::optional<Index> most = positive_or_none(limit, "limit");
  const Index numbers = positive_or_none(width, "width").value_or(0);
  const Unknown rule = missing_rule(unknown);
  if (words.is_none()) return read_all(file, most, numbers);
  if (most) throw_value_error({kReadVectors, "limit"}, "must be None with words");
  return read_some(file, nb::cast<nb::list>(words), numbers, rule);
}

}  // namespace

void bind_word_vectors(nb::module_& module) {
  module.def("read_word_vectors", read_word_vectors_call, nb::arg(), nb::arg().none(),
             nb::arg().none(), nb::arg().none(), nb::arg().none());
}

}  // namespace qkv::python
