// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_EXPRESSIONS_H_
#define QKV_PYTHON_SRC_EXPRESSIONS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <qkv/expression.h>

#include "arrays.h"

// Scores and masks that Python programs write (qkv/_mods.py), as expressions of the library.
namespace qkv::python {

// An array that expressions read; holds its memory.
struct CapturedInput {
  Array array;
  std::string name;
  Captured captured;
};

// An expression, with the arrays that it reads: the library's expressions do not own them.
struct BoundExpression {
  Expression expression;
  std::vector<std::shared_ptr<const CapturedInput>> arrays;
};

// The name of each array's gradient: the array's own name, with a number if an earlier array has
// that name ("table", "table_2"). It is empty for integers and bool, which have no gradient.
std::vector<std::string> gradient_names(
    const std::vector<std::shared_ptr<const CapturedInput>>& arrays);

// Makes arrays for the gradients of the arrays that scores read, and adds their views to `to`.
// make(name, source, view) makes an array like `source` and sets its view; it returns None if the
// gradient is not wanted. Returns a dict of the gradients by name, or None without any.
nb::object captured_gradients(
    const std::vector<std::shared_ptr<const CapturedInput>>& arrays,
    std::vector<CapturedGradient>& to,
    const std::function<nb::object(const std::string&, const ConstView&, View&)>& make);

// Replaces each array of a dict by finish(array); None is left as it is.
template <class Finish>
void finish_all(const nb::object& arrays, const Finish& finish) {
  if (arrays.is_none()) return;
  nb::dict dict = nb::borrow<nb::dict>(arrays);
  for (const nb::handle name : dict.keys()) dict[name] = finish(nb::object(dict[name]));
}

// The class _core.ScoreMod or _core.MaskMod, which a ScoreMod or MaskMod of _mods.py holds.
template <class Mod>
struct BoundMod {
  Mod mod;
  BoundExpression from;
};
using BoundScoreMod = BoundMod<ScoreMod>;
using BoundMaskMod = BoundMod<MaskMod>;

// The BoundScoreMod or BoundMaskMod that an object of _mods.py holds; a plain function is traced.
// Throws TypeError for other objects.
template <class Bound>
nb::object mod_of(nb::handle object, const Name& name);

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_EXPRESSIONS_H_
