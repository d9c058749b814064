// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <atomic>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <qkv/kv_cache.h>

#include "areas.h"
#include "arguments.h"
#include "attention.h"
#include "call.h"
#include "errors.h"

namespace qkv::python {
namespace {

constexpr const char* kCache = "KvCache";
constexpr const char* kCacheAppend = "KvCache.append";
constexpr const char* kCacheTruncate = "KvCache.truncate";
constexpr const char* kCacheReset = "KvCache.reset";
constexpr const char* kCacheReorder = "KvCache.reorder";
constexpr const char* kCacheFirstKey = "KvCache.first_key";
constexpr const char* kCacheAttend = "KvCache.attention";

KvCacheSizes sizes_of(const nb::tuple& sizes) {
  constexpr std::array<std::string_view, 4> kNames = {"float32", "float64", "bfloat16", "float16"};
  constexpr std::array<DType, 4> kTypes = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                                           DType::kFloat16};
  const auto index = [&](std::size_t place, const char* name) {
    return index_of(sizes[place], {kCache, name});
  };
  KvCacheSizes to{.B = index(0, "B"), .G = index(1, "G"), .D = index(2, "D"), .E = index(3, "E")};
  to.dtype = kTypes[static_cast<std::size_t>(word_of(sizes[4], {kCache, "dtype"}, kNames))];
  to.page = index(5, "page");
  to.window = index(6, "window");
  to.queries = index(7, "queries");
  return to;
}

std::vector<Index> entries_of(nb::handle object, const Name& name) {
  if (!nb::isinstance<nb::sequence>(object) || nb::isinstance<nb::str>(object)) {
    throw_type_error(name, "must be a list of integers, got " + describe(object));
  }
  std::vector<Index> entries;
  for (const nb::handle entry : nb::borrow<nb::sequence>(object)) {
    entries.push_back(index_of(entry, name));
  }
  return entries;
}

// The cache. attention() runs without the GIL: other calls meanwhile are errors.
class HeldCache {
  // Calls f(); its errors name the Python method and arguments.
  template <class F>
  static auto in_words(const char* function, const F& f) {
    try {
      return f();
    } catch (const Error& error) {
      throw with_names(error, function,
                       {{"sizes.B", "B"},
                        {"sizes.G", "G"},
                        {"sizes.D", "D"},
                        {"sizes.E", "E"},
                        {"sizes.page", "page"},
                        {"sizes.window", "window"},
                        {"sizes.queries", "queries"},
                        {"options.diagonal", "causal_offset"},
                        {"from", "entries"}});
    }
  }

 public:
  explicit HeldCache(const nb::tuple& sizes)
      : cache_(in_words(kCache, [&] { return KvCache(sizes_of(sizes)); })) {}

  void append(nb::handle k, nb::handle v, nb::handle entries) {
    const Array keys = array_of(k, {kCacheAppend, "k"});
    const Array values = array_of(v, {kCacheAppend, "v"});
    const Use use(*this, kCacheAppend);
    in_words(kCacheAppend, [&] {
      if (entries.is_none()) return cache_.append(keys.view, values.view);
      cache_.append(keys.view, values.view, entries_of(entries, {kCacheAppend, "entries"}));
    });
  }
  void truncate(nb::handle entry, nb::handle length) {
    const Index of = index_of(entry, {kCacheTruncate, "entry"});
    const Index to = index_of(length, {kCacheTruncate, "length"});
    const Use use(*this, kCacheTruncate);
    in_words(kCacheTruncate, [&] { cache_.truncate(of, to); });
  }
  void reset() {
    const Use use(*this, kCacheReset);
    cache_.reset();
  }
  void reorder(nb::handle from) {
    const std::vector<Index> entries = entries_of(from, {kCacheReorder, "entries"});
    const Use use(*this, kCacheReorder);
    in_words(kCacheReorder, [&] { cache_.reorder(entries); });
  }

  nb::object attention(nb::handle q, const nb::tuple& options, const nb::tuple& wanted,
                       nb::handle threads) {
    const Use use(*this, kCacheAttend);
    return in_words(kCacheAttend, [&] {
      CallArguments call = call_arguments(kCacheAttend, q, nb::none(), nb::none(), options);
      call.inputs = cache_.inputs(call.inputs.q);
      const int thread_count = threads_of(kCacheAttend, threads);
      return attend(kCacheAttend, call, q, wanted, [&](double work, const Outputs& outputs) {
        run_call(thread_count, work, [&](Context& context) {
          cache_.attention(call.inputs.q, call.options, outputs, context);
        });
      });
    });
  }

  nb::tuple lengths() const {
    nb::list all;
    for (const Index length : cache_.lengths()) all.append(length);
    return nb::tuple(all);
  }
  Index first_key(nb::handle entry) const {
    return in_words(kCacheFirstKey, [&] {
      return cache_.first_key(index_of(entry, {kCacheFirstKey, "entry"}));
    });
  }
  Index used_pages() const { return cache_.used_pages(); }
  std::size_t bytes() const { return cache_.bytes(); }

 private:
  class Use {
   public:
    Use(HeldCache& cache, const char* function) : cache_(cache) {
      if (cache_.used_.exchange(true)) {
        throw Error(function, "cache", "is in use by another call");
      }
    }
    ~Use() { cache_.used_ = false; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    HeldCache& cache_;
  };

  KvCache cache_;
  std::atomic<bool> used_ = false;
};

}  // namespace

void bind_kv_cache(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  nb::class_<HeldCache>(module, kCache)
      .def(nb::init<const nb::tuple&>())
      .def("append", &HeldCache::append, any(), any(), any())
      .def("truncate", &HeldCache::truncate, any(), any())
      .def("reset", &HeldCache::reset)
      .def("reorder", &HeldCache::reorder, any())
      .def("attention", &HeldCache::attention, any(), nb::arg(), nb::arg(), any())
      .def("first_key", &HeldCache::first_key, any())
      .def_prop_ro("lengths", &HeldCache::lengths)
      .def_prop_ro("used_pages", &HeldCache::used_pages)
      .def_prop_ro("bytes", &HeldCache::bytes);
}

}  // namespace qkv::python
