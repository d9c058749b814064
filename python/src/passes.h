// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_PYTHON_SRC_PASSES_H_
#define QKV_PYTHON_SRC_PASSES_H_

#include <memory>
#include <utility>

namespace qkv::python {

// The forward passes of a layer. All of it is touched under the GIL only, so that several threads
// may call: each works on a pass of its own, and the last one to end is the one that backward()
// undoes; there is none when it failed. A Pass has release(), which lets Python's objects go and
// keeps its memory.
template <class Pass>
class Passes {
 public:
  // f(pass) fills the pass that becomes the last one; none is when it throws. Until then last()
  // stays for backward() in other threads. Gives what f does.
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

  // Null: there is nothing to undo.
  std::shared_ptr<Pass> last() const { return last_; }

 private:
  // Keeps a pass for its memory, unless a backward() is at work on it. What its objects run when
  // they go may call the layer again.
  void retire(std::shared_ptr<Pass> pass) {
    if (!pass || pass.use_count() > 1) return;
    pass->release();
    spare_ = std::move(pass);
  }

  std::shared_ptr<Pass> last_;
  std::shared_ptr<Pass> spare_;  // an earlier one; nobody else holds it
};

}  // namespace qkv::python

#endif  // QKV_PYTHON_SRC_PASSES_H_
