// SPDX-License-Identifier: Apache-2.0
#include "expressions.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <qkv/error.h>

#include "areas.h"
#include "errors.h"

namespace qkv::python {
namespace {

constexpr const char* kExpression = "expression";

using OfOne = Expression (*)(const Expression&);
using OfTwo = Expression (*)(const Expression&, const Expression&);

constexpr std::pair<std::string_view, OfOne> kOfOne[] = {
    {"negative", [](const Expression& a) { return -a; }},
    {"not", [](const Expression& a) { return !a; }},
    {"abs", &abs},
    {"exp", &exp},
    {"log", &log},
    {"sqrt", &sqrt},
    {"tanh", &tanh},
    {"sin", &sin},
    {"cos", &cos},
    {"floor", &floor},
    {"to_number", &to_number},
    {"to_integer", &to_integer}};

constexpr std::pair<std::string_view, OfTwo> kOfTwo[] = {
    {"+", [](const Expression& a, const Expression& b) { return a + b; }},
    {"-", [](const Expression& a, const Expression& b) { return a - b; }},
    {"*", [](const Expression& a, const Expression& b) { return a * b; }},
    {"/", [](const Expression& a, const Expression& b) { return a / b; }},
    {"%", [](const Expression& a, const Expression& b) { return a % b; }},
    {"<", [](const Expression& a, const Expression& b) { return a < b; }},
    {"<=", [](const Expression& a, const Expression& b) { return a <= b; }},
    {">", [](const Expression& a, const Expression& b) { return a > b; }},
    {">=", [](const Expression& a, const Expression& b) { return a >= b; }},
    {"==", [](const Expression& a, const Expression& b) { return a == b; }},
    {"!=", [](const Expression& a, const Expression& b) { return a != b; }},
    {"and", [](const Expression& a, const Expression& b) { return a && b; }},
    {"or", [](const Expression& a, const Expression& b) { return a || b; }},
    {"minimum", [](const Expression& a, const Expression& b) { return min(a, b); }},
    {"maximum", [](const Expression& a, const Expression& b) { return max(a, b); }}};

template <class Table>
auto found_in(const Table& table, std::string_view name) {
  const auto* const found =
      std::ranges::find_if(table, [&](const auto& known) { return known.first == name; });
  if (found == std::end(table)) {
    throw nb::type_error(
        "qkv: the package and its extension are of different versions "
        "(operations)");
  }
  return found->second;
}

void add_arrays(const BoundExpression& from, BoundExpression& to) {
  for (const auto& array : from.arrays) {
    if (std::ranges::find(to.arrays, array) == to.arrays.end()) to.arrays.push_back(array);
  }
}

// The score, an index of the pair, or a length, by its name: "s", "b", "h", "i", "j", "Tq" or "Tk".
BoundExpression symbol(const std::string& name) {
  const Symbols x;
  const std::pair<std::string_view, const Expression*> kSymbols[] = {
      {"s", &x.s}, {"b", &x.b},   {"h", &x.h},  {"i", &x.i},
      {"j", &x.j}, {"Tq", &x.Tq}, {"Tk", &x.Tk}};
  return {*found_in(kSymbols, name), {}};
}

BoundExpression of_one(const std::string& name, const BoundExpression& a) {
  return {found_in(kOfOne, name)(a.expression), a.arrays};
}

BoundExpression of_two(const std::string& name, const BoundExpression& a,
                       const BoundExpression& b) {
  BoundExpression made{found_in(kOfTwo, name)(a.expression, b.expression), a.arrays};
  add_arrays(b, made);
  return made;
}

BoundExpression chosen(const BoundExpression& condition, const BoundExpression& a,
                       const BoundExpression& b) {
  BoundExpression made{where(condition.expression, a.expression, b.expression), condition.arrays};
  add_arrays(a, made);
  add_arrays(b, made);
  return made;
}

class BoundArray {
 public:
  BoundArray(nb::handle array, const std::string& name) {
    Array held = array_of(array, {kExpression, name.c_str(), "real, integer or bool"});
    const Captured captured(held.view, name);
    input_ = std::make_shared<const CapturedInput>(CapturedInput{std::move(held), name, captured});
  }

  const std::shared_ptr<const CapturedInput>& input() const { return input_; }
  BoundExpression at(const nb::list& index) const {
    std::vector<Expression> places;
    BoundExpression made{Expression(0), {input_}};
    for (const nb::handle place : index) {
      const auto& one = nb::cast<const BoundExpression&>(place);
      places.push_back(one.expression);
      add_arrays(one, made);
    }
    made.expression = input_->captured.at(places);
    return made;
  }

 private:
  std::shared_ptr<const CapturedInput> input_;
};

const char* type_of(const BoundExpression& x) {
  switch (x.expression.type()) {
    case Expression::Type::kTruth:
      return "truth";
    case Expression::Type::kInteger:
      return "integer";
    case Expression::Type::kNumber:
      return "number";
  }
  __builtin_unreachable();
}

template <class Mod>
void bind_mod(nb::module_& module, const char* name, Mod (*make)(const Expression&)) {
  using Bound = BoundMod<Mod>;
  nb::class_<Bound>(module, name)
      .def("__init__",
           [make](Bound* self, const BoundExpression& x) {
             try {
               new (self) Bound{make(x.expression), x};
             } catch (const Error& error) {  // the error names a C++ argument
               constexpr const char* kResult = "the result of f";
               throw with_names(error, error.function().c_str(),
                                {{"score", kResult}, {"mask", kResult}});
             }
           })
      .def("text", [](const Bound& self) { return self.from.expression.text(); })
      .def("gradient_name", [](const Bound& self, const BoundArray& array) {
        const auto& arrays = self.from.arrays;
        const auto found = std::ranges::find(arrays, array.input());
        const auto place = static_cast<std::size_t>(found - arrays.begin());
        return found == arrays.end() ? std::string() : gradient_names(arrays)[place];
      });
}

}  // namespace

std::vector<std::string> gradient_names(
    const std::vector<std::shared_ptr<const CapturedInput>>& arrays) {
  std::vector<std::string> names;
  for (const auto& input : arrays) {
    std::string name;
    if (is_real(input->array.view.dtype())) {
      name = input->name;
      for (int n = 2; std::ranges::find(names, name) != names.end(); ++n) {
        name = input->name + "_" + std::to_string(n);
      }
    }
    names.push_back(name);
  }
  return names;
}

nb::object captured_gradients(
    const std::vector<std::shared_ptr<const CapturedInput>>& arrays,
    std::vector<CapturedGradient>& to,
    const std::function<nb::object(const std::string&, const ConstView&, View&)>& make) {
  nb::dict made;
  const std::vector<std::string> names = gradient_names(arrays);
  for (std::size_t n = 0; n < names.size(); ++n) {
    if (names[n].empty()) continue;
    View view;
    const nb::object gradient = make(names[n], arrays[n]->array.view, view);
    if (gradient.is_none()) continue;
    made[names[n].c_str()] = gradient;
    to.push_back({arrays[n]->captured, view});
  }
  return nb::len(made) > 0 ? nb::object(made) : nb::none();
}

template <class Bound>
nb::object mod_of(nb::handle object, const Name& name) {
  constexpr bool kOfScore = std::is_same_v<Bound, BoundScoreMod>;
  constexpr const char* kMake = kOfScore ? "score_mod" : "mask_mod";
  // Returns the attribute `_of`, or None if there is none. Reading it may raise other errors, such
  // as that for a tensor that requires a gradient.
  const auto bound = [](nb::handle made) {
    PyObject* const of = PyObject_GetAttrString(made.ptr(), "_of");
    if (of == nullptr && PyErr_ExceptionMatches(PyExc_AttributeError) == 0)
      nb::raise_python_error();
    if (of == nullptr) PyErr_Clear();
    return of == nullptr ? nb::object(nb::none()) : nb::steal(of);
  };
  nb::object found = bound(object);
  if (nb::isinstance<Bound>(found)) return found;
  const bool is_other = nb::isinstance<BoundScoreMod>(found) || nb::isinstance<BoundMaskMod>(found);
  if (is_other || PyCallable_Check(object.ptr()) == 0) {
    throw_type_error(name, std::string("must be ") +
                               (kOfScore ? "a function f(s, at) or qkv.score_mod(f)"
                                         : "a function f(at) or qkv.mask_mod(f)") +
                               ", got " + describe(object));
  }
  return bound(nb::module_::import_("qkv._mods").attr(kMake)(object));
}

template nb::object mod_of<BoundScoreMod>(nb::handle, const Name&);
template nb::object mod_of<BoundMaskMod>(nb::handle, const Name&);

void bind_expressions(nb::module_& module) {
  nb::class_<BoundExpression>(module, "Expression")
      .def("text", [](const BoundExpression& self) { return self.expression.text(); })
      .def("type", type_of);
  nb::class_<BoundArray>(module, "Captured")
      .def(nb::init<nb::handle, const std::string&>(), nb::arg(), nb::arg())
      .def("at", &BoundArray::at);
  bind_mod<ScoreMod>(module, "ScoreMod", &score_mod);
  bind_mod<MaskMod>(module, "MaskMod", &mask_mod);
  module.def("symbol", symbol);
  module.def("truth", [](bool value) { return BoundExpression{Expression(value), {}}; });
  module.def("integer", [](std::int64_t value) { return BoundExpression{Expression(value), {}}; });
  module.def("number", [](double value) { return BoundExpression{Expression(value), {}}; });
  module.def("of_one", of_one);
  module.def("of_two", of_two);
  module.def("where", chosen);
}

}  // namespace qkv::python
