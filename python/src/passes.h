// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_PASSES_H_
#define QKV_PYTHON_SRC_PASSES_H_

#include <memory>
#include <utility>

namespace qkv::python {

// The forward passes of a layer. Accessed only under the GIL, so that several threads may call:
// each works on its own pass, and backward() uses the last one to finish; there is none if that one
// failed. A Pass has release(), which releases Python objects and keeps its memory.
template <class Pass>
class Passes {
 public:
  // f(pass) fills the pass that becomes the last one; if it throws, there is none. Until then
  // last() stays valid for backward() in other threads. Returns the result of f.
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

  // Null if there is none.
  std::shared_ptr<Pass> last() const { return last_; }

 private:
  // Keeps a pass for its memory, unless a backward() is using it. Releasing its objects may run
  // code that calls the layer again.
  void retire(std::shared_ptr<Pass> pass) {
    if (!pass || pass.use_count() > 1) return;
    pass->release();
    spare_ = std::move(pass);
  }

  std::shared_ptr<Pass> last_;
  std::shared_ptr<Pass> spare_;  // an earlier one, not shared
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_PASSES_H_
