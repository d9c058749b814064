// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_EXPRESSIONS_H_
#define QKV_PYTHON_SRC_EXPRESSIONS_H_

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
