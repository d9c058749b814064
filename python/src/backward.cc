// SPDX-License-Identifier: Apache-2.0
#include "backward.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include "areas.h"
#include "attention.h"
#include "call.h"
#include "errors.h"
#include "results.h"

namespace qkv::python {
namespace {

constexpr const char* kAttentionBackward = "attention_backward";
// The gradients of k and Wk, which BackwardFunction::keys_apart leaves out.
constexpr std::array kOfKeys = {"dk", "dparams.Wk"};

class GradientMaker;

// One entry of the list of gradients. `make` makes its array, or a dict of arrays, and sets the
// views in `to`.
struct Gradient {
  const char* name;
  nb::object (*make)(GradientMaker& maker, InputGradients& to);
  // For a gradient that is a dict, the name of one entry as an example, else null.
  const char* example = nullptr;

  bool is_dict() const { return example != nullptr; }
};

nb::object make_q(GradientMaker& maker, InputGradients& to);
nb::object make_k(GradientMaker& maker, InputGradients& to);
nb::object make_v(GradientMaker& maker, InputGradients& to);
nb::object make_bias(GradientMaker& maker, InputGradients& to);
nb::object make_params(GradientMaker& maker, InputGradients& to);
nb::object make_alibi(GradientMaker& maker, InputGradients& to);
nb::object make_sinks(GradientMaker& maker, InputGradients& to);
nb::object make_captured(GradientMaker& maker, InputGradients& to);

// The list of the gradients that Python gets, in the order of the tuple (_core.GRADIENTS).
constexpr std::array kGradients = {Gradient{"dq", make_q},
                                   Gradient{"dk", make_k},
                                   Gradient{"dv", make_v},
                                   Gradient{"dbias", make_bias},
                                   Gradient{"dparams", make_params, "dparams.W"},
                                   Gradient{"dalibi_slopes", make_alibi},
                                   Gradient{"dsinks", make_sinks},
                                   Gradient{"dcaptured", make_captured, "dcaptured.table"}};

// The entry of this name, or null.
const Gradient* gradient_named(std::string_view name) {
  const auto* at = std::find_if(kGradients.begin(), kGradients.end(),
                                [&](const Gradient& entry) { return entry.name == name; });
  return at == kGradients.end() ? nullptr : at;
}

// The names for messages: "dq, dk, dparams (or one: dparams.W) and dsinks".
std::string names_of_gradients() {
  std::string names;
  for (const Gradient& entry : kGradients) {
    if (&entry != kGradients.begin()) names += &entry == &kGradients.back() ? " and " : ", ";
    names += entry.name;
    if (entry.is_dict()) names += " (or one: " + std::string(entry.example) + ")";
  }
  return names;
}

// The name of the dict that has the gradient: "dparams" for "dparams.W", "" if no dict has it.
std::string dict_of(const std::string& gradient) {
  const std::size_t dot = gradient.find('.');
  const std::string name = gradient.substr(0, dot);
  const Gradient* dict = gradient_named(name);
  return dot != gradient.npos && dict != nullptr && dict->is_dict() ? name : "";
}
bool is_dict(const std::string& gradient) {
  const Gradient* const found = gradient_named(gradient);
  return found != nullptr && found->is_dict();
}

// The requested ("wanted") gradients of a call, and the arrays that they are added to.
class Wanted {
 public:
  // `names` is None for all gradients, or a list of names of gradients ("dparams.W" for one
  // parameter). `add_to` is None, or a dict of arrays by name, whose names are then requested.
  Wanted(const char* function, nb::handle names, nb::handle add_to) : function_(function) {
    if (!add_to.is_none()) {
      if (!names.is_none()) {
        throw_value_error(name("wanted"),
                          "is given, but add_to already names the requested gradients");
      }
      read_add_to(nb::borrow<nb::dict>(add_to));
      all_ = false;
    } else if (!names.is_none()) {
      if (!nb::isinstance<nb::tuple>(names) && !nb::isinstance<nb::list>(names)) {
        throw_type_error(name("wanted"),
                         "must be a tuple or list of names, got " + describe(names));
      }
      for (const nb::handle each : names) read_name(each);
      all_ = false;
    }
  }

  bool accumulates() const { return !arrays_.empty(); }
  // Excludes a gradient, even if all are requested.
  void leave_out(const char* gradient) { left_out_.insert(gradient); }
  // Registers a gradient that the call has; returns whether it is requested.
  bool asks(const std::string& gradient) {
    const std::string dict = dict_of(gradient);
    if (left_out_.contains(gradient)) return false;
    seen_.insert(dict);
    return all_ || names_.erase(gradient) > 0 || whole_.contains(dict);
  }
  // The array that this gradient is to be added to.
  nb::object array(const std::string& gradient) const { return arrays_.at(gradient); }
  // Throws Error for a requested gradient that the call does not have. To be called after asks()
  // has registered all gradients.
  void check_all_found() const {
    std::set<std::string> left_over = names_;
    std::set_difference(whole_.begin(), whole_.end(), seen_.begin(), seen_.end(),
                        std::inserter(left_over, left_over.end()));
    if (left_over.empty()) return;
    const std::string left = *left_over.begin();
    throw_value_error(name(accumulates() ? "add_to" : "wanted"),
                      "names " + left + ", but the call has no " + left.substr(1));
  }

 private:
  Name name(const char* argument) const { return {function_, argument}; }
  void read_name(nb::handle given) {
    if (!nb::isinstance<nb::str>(given)) {
      throw_type_error(name("wanted"), "must be names, got " + describe(given));
    }
    const std::string word = nb::cast<std::string>(given);
    if (is_dict(word)) {
      whole_.insert(word);
      return;
    }
    if (dict_of(word).empty() && gradient_named(word) == nullptr) {
      throw_value_error(name("wanted"),
                        "may name " + names_of_gradients() + ", got " + describe(given));
    }
    names_.insert(word);
  }
  void read_add_to(const nb::dict& add_to) {
    for (const auto& [key, array] : add_to) {
      if (array.is_none()) continue;
      const std::string word = nb::cast<std::string>(key);
      if (!is_dict(word)) {
        add_array(word, array);
        continue;
      }
      if (!nb::isinstance<nb::dict>(array)) {
        throw_type_error(name("add_to"),
                         "must have a dict of arrays as " + word + ", got " + describe(array));
      }
      for (const auto& [key_of_one, value] : nb::borrow<nb::dict>(array)) {
        add_array(word + "." + nb::cast<std::string>(key_of_one), value);
      }
    }
    if (arrays_.empty()) throw_value_error(name("add_to"), "must hold at least one array");
  }
  void add_array(const std::string& gradient, nb::handle array) {
    names_.insert(gradient);
    arrays_[gradient] = nb::borrow(array);
  }

  const char* function_;

  bool all_ = true;
  std::set<std::string> names_, left_out_;
  std::set<std::string> whole_, seen_;  // dicts that are requested whole, and that the call has
  std::map<std::string, nb::object> arrays_;
};

// Makes arrays for gradients, with the shape and dtype of their sources, or uses those of add_to.
class GradientMaker {
 public:
  GradientMaker(const char* function, const ResultMaker& maker, Wanted& wanted, CallArguments& call)
      : function_(function), maker_(maker), wanted_(wanted), call_(call) {}

  CallArguments& call() const { return call_; }

  // Returns the array for a gradient, and its view; None if the source is absent or the gradient is
  // not requested.
  nb::object make(const std::string& name, const ConstView& source, View& view) {
    if (!source.given() || !wanted_.asks(name)) return nb::none();
    if (!wanted_.accumulates()) return maker_.make(source.dtype(), source.shape(), view);
    nb::object array = wanted_.array(name);
    const std::string argument = "add_to " + name;
    const Array held = call_.hold(array_of(array, {function_, argument.c_str()}));
    view = writable_view(held, array, {function_, argument.c_str()});
    if (!(view.shape() == source.shape()) || view.dtype() != source.dtype()) {
      throw_value_error({function_, argument.c_str()},
                        "must have the shape and dtype of its source, " + qkv::describe(source) +
                            ", got " + qkv::describe(ConstView(view)));
    }
    return array;
  }
  // Calls make() for the gradient of q, k or v (`place` is 0, 1 or 2), which has the memory layout
  // of its source, and sets `view` to the library's view of it.
  nb::object make_input(const char* name, std::size_t place, Index heads, View& view) {
    nb::object gradient = make(name, call_.arrays[place].view, view);
    view = as_heads_first(view, call_.layout, heads);
    return gradient;
  }
  nb::object make_params(InputGradients& gradients) {
    const Options& options = call_.options;
    nb::dict params;
    const auto add = [&](const std::string& name, const ConstView& source, View& view) {
      const nb::object made = make("dparams." + name, source, view);
      if (!made.is_none()) params[name.c_str()] = made;
    };
    std::visit(
        [&]<class S>(const S& score) {
          typename S::Gradient to;
          S::for_each_parameter(
              [&](const char* name, auto value, auto its) { add(name, score.*value, to.*its); });
          if (nb::len(params) > 0) gradients.score = to;
        },
        options.score);
    if (options.qk_norm) {
      QkNorm::for_each_parameter([&](const char* side, auto value, auto its) {
        add(gain_name(side), *options.qk_norm.*value, gradients.qk_norm.*its);
      });
    }
    return nb::len(params) > 0 ? nb::object(params) : nb::none();
  }
  nb::object make_captured(InputGradients& gradients) {
    return captured_gradients(call_.captured, gradients.captured,
                              [this](const std::string& name, const ConstView& source, View& view) {
                                return make("dcaptured." + name, source, view);
                              });
  }
  // The array to return to Python, given the filled array from make().
  nb::object finish(const nb::object& made) const {
    return wanted_.accumulates() ? made : maker_.finish(made);
  }

 private:
  const char* function_;
  const ResultMaker& maker_;
  Wanted& wanted_;
  CallArguments& call_;
};

nb::object make_q(GradientMaker& maker, InputGradients& to) {
  return maker.make_input("dq", 0, maker.call().layout.heads, to.q);
}
nb::object make_k(GradientMaker& maker, InputGradients& to) {
  return maker.make_input("dk", 1, maker.call().layout.key_heads, to.k);
}
nb::object make_v(GradientMaker& maker, InputGradients& to) {
  return maker.make_input("dv", 2, maker.call().layout.key_heads, to.v);
}
nb::object make_bias(GradientMaker& maker, InputGradients& to) {
  return maker.make("dbias", maker.call().options.bias, to.bias);
}
nb::object make_params(GradientMaker& maker, InputGradients& to) { return maker.make_params(to); }
nb::object make_alibi(GradientMaker& maker, InputGradients& to) {
  return maker.make("dalibi_slopes", maker.call().options.alibi, to.alibi);
}
nb::object make_sinks(GradientMaker& maker, InputGradients& to) {
  return maker.make("dsinks", maker.call().options.sinks, to.sinks);
}
nb::object make_captured(GradientMaker& maker, InputGradients& to) {
  return maker.make_captured(to);
}

// The shapes of the results of a call. Throws Error for invalid inputs, so that no array is made
// from their shapes.
ResultShapes checked_shapes(const char* function, const CallArguments& call) {
  try {
    return shapes_of(function, call);
  } catch (const Error& error) {
    throw of_function(error, function);
  }
}

nb::tuple backward_call(nb::handle q, nb::handle k, nb::handle v, const nb::tuple& outputs,
                        const nb::tuple& options, nb::handle threads) {
  CallArguments call = call_arguments(kAttentionBackward, q, k, v, options);
  const int thread_count = threads_of(kAttentionBackward, threads);
  return differentiate(
      {kAttentionBackward}, call, ResultMaker(q), outputs,
      [&](double work, const Saved& saved, const OutputGradients& from, const InputGradients& to) {
        run_call(thread_count, work, [&](Context& context) {
          in_layout(call, [&] {
            attention_backward(call.inputs, call.options, saved, from, to, context);
          });
        });
      });
}

}  // namespace

nb::tuple differentiate(const BackwardFunction& of, CallArguments& call, const ResultMaker& maker,
                        const nb::tuple& outputs, const RunBackward& run) {
  const char* const function = of.name;
  constexpr std::array kNames = {"dout", "out", "lse", "dlse", "dweights"};
  if (nb::len(outputs) != kNames.size() + 3) {
    throw nb::type_error("qkv: the package and its extension are of different versions (outputs)");
  }
  std::array<ConstView, kNames.size()> given;
  for (std::size_t n = 0; n < kNames.size(); ++n) {
    const Name name{function, kNames[n]};
    const nb::object array(outputs[n]);
    given[n] =
        call.hold(call.on_device ? array_on_device(array, name) : array_of(array, name)).view;
    if (n < 2) given[n] = as_heads_first(given[n], call.layout, call.layout.heads, name);
  }
  const Array rows =
      array_or_sequence(nb::object(outputs[5]), {function, "rows", kIntegers}, DType::kNone);
  if (rows.view.given() && !given[4].given()) {
    throw_value_error({function, "rows"}, "is given but dweights is not");
  }
  const ResultShapes shapes = in_layout(call, [&] { return checked_shapes(function, call); });
  const Saved saved{given[1], given[2]};
  const OutputGradients from{given[0], given[3], {rows.view, given[4]}};

  Wanted wanted{function, nb::object(outputs[6]), nb::object(outputs[7])};
  if (of.keys_apart) {
    for (const char* name : kOfKeys) wanted.leave_out(name);
  }
  GradientMaker gradients(function, maker, wanted, call);
  InputGradients to;
  if (wanted.accumulates()) to.write = Write::kAccumulate;
  std::array<nb::object, kGradients.size()> made;
  for (std::size_t n = 0; n < made.size(); ++n) made[n] = kGradients[n].make(gradients, to);
  wanted.check_all_found();
  run(3 * work_of(call, shapes), saved, from, to);
  const auto finished = [&](const nb::object& array) { return gradients.finish(array); };
  nb::list all;
  for (std::size_t n = 0; n < made.size(); ++n) {
    if (kGradients[n].is_dict()) {
      finish_all(made[n], finished);
      all.append(made[n]);
    } else {
      all.append(finished(made[n]));
    }
  }
  return nb::tuple(all);
}

void bind_backward(nb::module_& module) {
  module.def("attention_backward", backward_call, nb::arg().none(), nb::arg().none(),
             nb::arg().none(), nb::arg(), nb::arg(), nb::arg().none());
  nb::list names;
  for (const Gradient& entry : kGradients) names.append(entry.name);
  module.attr("GRADIENTS") = nb::tuple(names);
}

}  // namespace qkv::python
