// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_PASSES_H_
#define QKV_PYTHON_SRC_PASSES_H_

#include <memory>
#include <utility>

namespace qkv::python {

// The forward passes of a layer, accessed only under the GIL. Several threads may call the layer:
// each works on its own pass, and backward() uses the pass that finished last, or none if that pass
// failed. Pass::release() releases Python objects and keeps the memory of the pass for reuse.
template <class Pass>
class Passes {
 public:
  // Calls f(pass) and returns its result. The pass that f fills becomes last(); if f throws, last()
  // becomes null. Until f ends, last() stays valid for backward() in other threads.
  template <class F>
  auto run(const F& f) {
    std::shared_ptr<Pass> pass = std::exchange(spare_, nullptr);
    if (!pass) pass = std::make_shared<Pass>();
    try {
      auto results = f(*pass);
      retire(std::exchange(last_, std::move(pass)));
      return results;
    } catch (...) {
      retire(std::exchange(last_, nullptr));
      throw;
    }
  }

  // The last pass, or null if there is none.
  std::shared_ptr<Pass> last() const { return last_; }

 private:
  // Keeps a pass for reuse of its memory, unless a backward() is using it. Releasing its Python
  // objects may run code that calls the layer again.
  void retire(std::shared_ptr<Pass> pass) {
    if (!pass || pass.use_count() > 1) return;
    pass->release();
    spare_ = std::move(pass);
  }

  std::shared_ptr<Pass> last_;
  std::shared_ptr<Pass> spare_;  // an earlier pass that nothing else uses
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_PASSES_H_
