// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_HELD_LAYER_H_
#define QKV_PYTHON_SRC_HELD_LAYER_H_

#include <memory>
#include <utility>

#include <nanobind/nanobind.h>

#include <qkv/layers/parameters.h>

#include "arguments.h"
#include "files.h"
#include "layer_parameters.h"

namespace qkv::python {

// Owns a layer of the library and has the operations on its parameters for Python.
template <class L>
class HeldLayer {
 public:
  explicit HeldLayer(L layer) : layer_(std::make_shared<L>(std::move(layer))) {}
  const L& operator*() const { return *layer_; }
  const L* operator->() const { return layer_.get(); }

  // NumPy arrays over the layer's own memory, which lives as long as they do.
  nb::dict parameters() const { return arrays_of(parameter_list(*layer_), layer_); }
  // `function` is the name for messages.
  void initialise(const char* function, nb::handle seed) const {
    qkv::initialise(*layer_, seed_of(seed, {function, "seed"}));
  }
  void assign(const char* function, const nb::dict& values) const {
    python::assign(function, parameter_list(*layer_), values);
  }
  // `path` is in the file system's encoding.
  void save(const nb::bytes& path) const { save_parameters(path, parameter_list(*layer_)); }
  void load(const nb::bytes& path) const { load_parameters(path, parameter_list(*layer_)); }

 private:
  std::shared_ptr<L> layer_;
};

// Binds the methods of HeldLayer on parameters, for a class that has held().
template <class Bound>
void bind_parameters(nb::class_<Bound>& bound) {
  bound.def("parameters", [](const Bound& self) { return self.held().parameters(); })
      .def(
          "initialise",
          [](const Bound& self, const char* function, nb::handle seed) {
            self.held().initialise(function, seed);
          },
          nb::arg(), nb::arg().none())
      .def("assign", [](const Bound& self, const char* function,
                        const nb::dict& values) { self.held().assign(function, values); })
      .def("save", [](const Bound& self, const nb::bytes& path) { self.held().save(path); })
      .def("load", [](const Bound& self, const nb::bytes& path) { self.held().load(path); });
}

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_HELD_LAYER_H_
