// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nanobind/stl/unique_ptr.h>

#include <qkv/kv_cache.h>
#include <qkv/tensor.h>

#include "areas.h"
#include "arguments.h"
#include "attention.h"
#include "call.h"
#include "dlpack.h"
#include "errors.h"
#include "files.h"
#include "gil.h"
#include "numpy.h"

namespace qkv::python {
namespace {

constexpr const char* kCache = "KvCache";
constexpr const char* kCacheAppend = "KvCache.append";
constexpr const char* kCacheTruncate = "KvCache.truncate";
constexpr const char* kCacheReset = "KvCache.reset";
constexpr const char* kCacheReorder = "KvCache.reorder";
constexpr const char* kCacheFirstKey = "KvCache.first_key";
constexpr const char* kCacheReserve = "KvCache.reserve";
constexpr const char* kCacheSave = "KvCache.save";
constexpr const char* kCacheLoad = "KvCache.load";
constexpr const char* kCacheAttend = "KvCache.attention";

constexpr std::array<std::string_view, 5> kCacheTypeNames = {"float32", "float64", "bfloat16",
                                                             "float16", "q8"};
constexpr std::array<DType, 5> kCacheTypes = {DType::kFloat32, DType::kFloat64, DType::kBFloat16,
                                              DType::kFloat16, DType::kQ8};

constexpr const char* kCacheCopy = "KvCache.__copy__";
constexpr const char* kCacheReduce = "KvCache.__reduce__";

// The number of sizes in the tuple that _kv_cache.py passes.
constexpr std::size_t kSizes = 8;

KvCacheSizes sizes_of(const nb::tuple& sizes) {
  if (nb::len(sizes) != kSizes)
    throw nb::type_error("qkv: the package and its extension are of different versions (sizes)");
  const auto index = [&](std::size_t place, const char* name) {
    return index_of(sizes[place], {kCache, name});
  };
  KvCacheSizes to{.B = index(0, "B"), .G = index(1, "G"), .D = index(2, "D"), .E = index(3, "E")};
  to.dtype =
      kCacheTypes[static_cast<std::size_t>(word_of(sizes[4], {kCache, "dtype"}, kCacheTypeNames))];
  to.page = index(5, "page");
  to.window = index(6, "window");
  to.queries = index(7, "queries");
  return to;
}

// Reads a sequence of at most B indices of entries. The length is checked before the sequence is
// read, since a Python range of any length could be given.
std::vector<Index> entries_of(nb::handle object, Index B, const Name& name) {
  const bool is_scalar =
      nb::isinstance<nb::str>(object) ||
      (nb::hasattr(object, "shape") && nb::len(nb::object(object.attr("shape"))) == 0);
  if (!nb::isinstance<nb::sequence>(object) || is_scalar) {
    throw_type_error(name, "must be a list of integers, got " + describe(object));
  }
  const std::size_t count = nb::len(object);
  if (count > static_cast<std::size_t>(B)) {
    throw_value_error(name, "must be at most B = " + std::to_string(B) + " integers, got " +
                                std::to_string(count));
  }
  std::vector<Index> entries;
  for (const nb::handle entry : nb::borrow<nb::sequence>(object)) {
    entries.push_back(index_of(entry, name));
  }
  return entries;
}

// Throws Error for queries that are not of the cache's B entries: the library's error would be
// about its tables of pages.
void check_queries(const ConstView& q, Index B) {
  if (!q.given() || (q.rank() == 4 && q.size(0) == B)) return;
  throw_value_error({kCacheAttend, "q"}, "must be [B,H,Tq,D] with B = " + std::to_string(B) +
                                             ", the entries of the cache, got " + qkv::describe(q));
}

std::string name_in_python(DType dtype) {
  const auto* const type = std::find(kCacheTypes.begin(), kCacheTypes.end(), dtype);
  return std::string(kCacheTypeNames[static_cast<std::size_t>(type - kCacheTypes.begin())]);
}

// ---- pickles --------------------------------------------------------------------------------

// A pickle is a dict of its format, the cache's sizes, and each array as (shape, bytes).
constexpr const char* kPickle = "qkv KvCache 1";
constexpr std::array<std::pair<const char*, Tensor KvCacheContents::*>, 5> kPickled = {
    {{"k_pages", &KvCacheContents::k_pages},
     {"v_pages", &KvCacheContents::v_pages},
     {"block_tables", &KvCacheContents::block_tables},
     {"lengths", &KvCacheContents::lengths},
     {"first_keys", &KvCacheContents::first_keys}}};

nb::dict pickle_of(const KvCacheContents& contents) {
  const KvCacheSizes& of = contents.sizes;
  nb::dict all;
  all["format"] = kPickle;
  all["sizes"] = nb::make_tuple(of.B, of.G, of.D, of.E, name_in_python(of.dtype), of.page,
                                of.window, of.queries);
  for (const auto& [name, member] : kPickled) {
    const ConstView array = contents.*member;
    nb::list shape;
    for (const Index size : array.shape()) shape.append(size);
    const auto bytes = static_cast<std::size_t>(array.element_count()) * size_of(array.dtype());
    all[name] = nb::make_tuple(nb::tuple(shape), nb::bytes(array.data(), bytes));
  }
  return all;
}

KvCacheContents contents_of(const nb::dict& pickle) {
  const auto damaged = [](const char* what) {
    const std::string text =
        std::string("KvCache: the field ") + what + " of the pickle is invalid";
    throw nb::value_error(text.c_str());
  };
  const auto item = [&](const char* name) {
    if (!pickle.contains(name)) damaged(name);
    return nb::object(pickle[name]);
  };
  if (!item("format").equal(nb::str(kPickle))) damaged("format");
  const nb::object sizes = item("sizes");
  if (!nb::isinstance<nb::tuple>(sizes)) damaged("sizes");
  KvCacheContents contents{.sizes = sizes_of(nb::borrow<nb::tuple>(sizes))};
  for (const auto& [name, member] : kPickled) {
    const nb::object pair = item(name);
    if (!nb::isinstance<nb::tuple>(pair) || nb::len(pair) != 2) damaged(name);
    const nb::object sizes_of_array = pair[0], bytes = pair[1];
    if (!nb::isinstance<nb::tuple>(sizes_of_array) || !nb::isinstance<nb::bytes>(bytes) ||
        nb::len(sizes_of_array) > kMaxRank) {
      damaged(name);
    }
    Dims shape;
    for (const nb::handle size : nb::borrow<nb::tuple>(sizes_of_array)) {
      shape.push_back(index_of(size, {kCache, name}));
      if (shape[shape.rank() - 1] < 0) damaged(name);
    }
    const bool are_rows =
        member == &KvCacheContents::k_pages || member == &KvCacheContents::v_pages;
    const DType dtype = are_rows ? contents.sizes.dtype : DType::kInt64;
    const auto from = nb::borrow<nb::bytes>(bytes);
    // The shape is checked against the number of bytes before memory is allocated.
    const Index count = static_cast<Index>(from.size() / size_of(dtype));
    if (from.size() % size_of(dtype) != 0 || element_count(shape) != count) damaged(name);
    Tensor& to = contents.*member = Tensor(dtype, shape);
    if (count > 0) std::memcpy(to.view().data(), from.c_str(), from.size());
  }
  return contents;
}

KvCache cache_of(const nb::dict& pickle) {
  const KvCacheContents contents = contents_of(pickle);
  try {
    return KvCache(contents);
  } catch (const Error& error) {  // the error names fields of the pickle, not arguments
    throw nb::value_error(error.what());
  }
}

// A read-only NumPy array over the memory of a view. The array owns `hold`, which keeps the pages
// alive and in place.
nb::object pages_array(const ConstView& view, std::shared_ptr<const void> hold) {
  using Hold = std::shared_ptr<const void>;
  auto own = std::make_unique<Hold>(std::move(hold));
  const nb::capsule owner(own.get(), [](void* held) noexcept { delete static_cast<Hold*>(held); });
  static_cast<void>(own.release());
  std::vector<std::size_t> shape(view.shape().begin(), view.shape().end());
  nb::dlpack::dtype type{};
  switch (view.dtype()) {
    case DType::kBFloat16:  // NumPy has no bfloat16, so view() sets the dtype below
      type = nb::dtype<std::uint16_t>();
      break;
    case DType::kQ8:
      type = nb::dtype<std::uint8_t>();
      shape.back() *= sizeof(BlockQ8);
      break;
    default:
      type = dlpack_of(view.dtype());
  }
  const nb::ndarray<nb::numpy, nb::ro, nb::device::cpu> array(view.data(), shape.size(),
                                                              shape.data(), owner, nullptr, type);
  const nb::object made = nb::cast(array);
  made.attr("setflags")(nb::arg("write") = false);  // nanobind leaves an empty array writable
  const bool as_bits = view.dtype() == DType::kBFloat16 || view.dtype() == DType::kQ8;
  return as_bits ? made.attr("view")(numpy().dtype(view.dtype())) : made;
}

// Owns the cache, which several threads may call at the same time, since long work runs without the
// GIL. Calls that read may overlap. A call that changes the cache may overlap no other call: the
// later of the two throws an error, because their order would be arbitrary.
class HeldCache {
  // Returns f(). Errors of f are rethrown with the names of the Python method and its arguments. An
  // error about kHeld, pages that NumPy arrays still use, becomes a BufferError.
  template <class F>
  static auto in_words(const char* function, const F& f) {
    try {
      return f();
    } catch (const Error& error) {
      const auto named = [&] {
        return with_names(error, function,
                          {{"sizes.B", "B"},
                           {"sizes.G", "G"},
                           {"sizes.D", "D"},
                           {"sizes.E", "E"},
                           {"sizes.page", "page"},
                           {"sizes.window", "window"},
                           {"sizes.queries", "queries"},
                           {"options.diagonal", "causal_offset"},
                           {"from", "entries"}});
      };
      if (error.argument() != kHeld) throw named();
      PyErr_Format(PyExc_BufferError, "%s (arrays of k_pages and v_pages hold them)",
                   named().what());
      nb::raise_python_error();
    }
  }

 public:
  explicit HeldCache(const nb::tuple& sizes)
      : cache_(in_words(kCache, [&] { return KvCache(sizes_of(sizes)); })) {}
  explicit HeldCache(const nb::bytes& path) : cache_(read_cache(path, nullptr)) {}
  explicit HeldCache(const nb::dict& pickle) : cache_(cache_of(pickle)) {}
  HeldCache(const HeldCache& other) : cache_(other.copied()) {}
  HeldCache& operator=(const HeldCache&) = delete;

  void append(nb::handle k, nb::handle v, nb::handle entries) {
    const Array keys = array_of(k, {kCacheAppend, "k"});
    const Array values = array_of(v, {kCacheAppend, "v"});
    in_words(kCacheAppend, [&] {
      std::vector<Index> some;
      if (!entries.is_none())
        some = entries_of(entries, cache_.sizes().B, {kCacheAppend, "entries"});
      const Changing use(*this, kCacheAppend);
      const auto count = [](const ConstView& x) {
        return x.given() ? static_cast<double>(x.element_count()) : 0;
      };
      run_call(1, {0, count(keys.view) + count(values.view)}, [&](Context& context) {
        if (entries.is_none()) return cache_.append(keys.view, values.view, context);
        cache_.append(keys.view, values.view, some, context);
      });
    });
  }
  void truncate(nb::handle entry, nb::handle length) {
    const Index of = index_of(entry, {kCacheTruncate, "entry"});
    const Index to = index_of(length, {kCacheTruncate, "length"});
    const Changing use(*this, kCacheTruncate);
    in_words(kCacheTruncate, [&] { cache_.truncate(of, to); });
  }
  void reserve(nb::handle pages) {
    const Index count = index_of(pages, {kCacheReserve, "pages"});
    const Changing use(*this, kCacheReserve);
    in_words(kCacheReserve, [&] { cache_.reserve(count); });
  }
  void reset() {
    const Changing use(*this, kCacheReset);
    cache_.reset();
  }
  void reorder(nb::handle from) {
    const std::vector<Index> entries =
        entries_of(from, cache_.sizes().B, {kCacheReorder, "entries"});
    const Changing use(*this, kCacheReorder);
    in_words(kCacheReorder, [&] { cache_.reorder(entries); });
  }
  void save(const nb::bytes& path) const {
    const Reading use(*this, kCacheSave);
    save_cache(path, cache_);
  }
  void load(const nb::bytes& path) {
    const Changing use(*this, kCacheLoad);
    KvCache loaded = read_cache(path, &cache_.sizes());
    in_words(kCacheLoad, [&] {
      constexpr long kOwn = 2;  // one reference of the cache and one of this expression
      if (cache_.hold_pages().use_count() > kOwn) {
        throw Error(kCacheLoad, kHeld, "cannot be replaced while held");
      }
    });
    cache_ = std::move(loaded);
  }

  // The contents as a dict, from which the constructor can make a cache.
  nb::dict pickle() const {
    const Reading use(*this, kCacheReduce);
    const KvCacheContents contents = [&] {
      const WithoutGil no_gil;
      return cache_.contents();
    }();
    return pickle_of(contents);
  }

  nb::object attention(nb::handle q, const nb::tuple& options, const nb::tuple& wanted,
                       nb::handle threads) {
    const Reading use(*this, kCacheAttend);
    return in_words(kCacheAttend, [&] {
      CallArguments call = call_arguments(kCacheAttend, q, nb::none(), nb::none(), options);
      check_queries(call.inputs.q, cache_.sizes().B);
      call.inputs = cache_.inputs(call.inputs.q);
      const int thread_count = threads_of(kCacheAttend, threads);
      return attend(kCacheAttend, call, q, wanted, [&](double work, const Outputs& outputs) {
        run_call(thread_count, work, [&](Context& context) {
          cache_.attention(call.inputs.q, call.options, outputs, context);
        });
      });
    });
  }

  nb::dict sizes() const {
    const KvCacheSizes& of = cache_.sizes();
    nb::dict all;
    all["B"] = of.B;
    all["G"] = of.G;
    all["D"] = of.D;
    all["E"] = of.E;
    all["dtype"] = name_in_python(of.dtype);
    all["page"] = of.page;
    all["window"] = of.window;
    all["queries"] = of.queries;
    return all;
  }
  nb::tuple lengths() const {
    const Reading use(*this, "KvCache.lengths");
    nb::list all;
    for (const Index length : cache_.lengths()) all.append(length);
    return nb::tuple(all);
  }
  nb::object k_pages() const {
    const Reading use(*this, "KvCache.k_pages");
    return pages_array(cache_.inputs({}).k, cache_.hold_pages());
  }
  nb::object v_pages() const {
    const Reading use(*this, "KvCache.v_pages");
    return pages_array(cache_.inputs({}).v, cache_.hold_pages());
  }
  // block_tables() and context_lens() return copies; the tables have -1 after an entry's last page.
  nb::object block_tables() const {
    const Reading use(*this, "KvCache.block_tables");
    const ConstView tables = cache_.inputs({}).block_tables;
    View to;
    nb::object array = numpy().empty(DType::kInt64, tables.shape(), to);
    copy(tables, to);
    const Index page = cache_.sizes().page;
    for (Index b = 0; b < tables.size(0); ++b) {
      const Index length = cache_.lengths()[static_cast<std::size_t>(b)];
      Index* const entry = to.as<Index>() + b * tables.size(1);
      for (Index n = 0; n < tables.size(1); ++n) entry[n] = n * page < length ? entry[n] : -1;
    }
    return array;
  }
  nb::object context_lens() const {
    const Reading use(*this, "KvCache.context_lens");
    View to;
    nb::object array = numpy().empty(DType::kInt64, {cache_.sizes().B}, to);
    copy(cache_.inputs({}).context_lens, to);
    return array;
  }
  Index first_key(nb::handle entry) const {
    const Reading use(*this, kCacheFirstKey);
    return in_words(kCacheFirstKey, [&] {
      return cache_.first_key(index_of(entry, {kCacheFirstKey, "entry"}));
    });
  }
  Index used_pages() const {
    const Reading use(*this, "KvCache.used_pages");
    return cache_.used_pages();
  }
  std::size_t bytes() const {
    const Reading use(*this, "KvCache.nbytes");
    return cache_.bytes();
  }

 private:
  static constexpr const char* kHeld = "the pages";

  KvCache copied() const {
    const Reading use(*this, kCacheCopy);
    const WithoutGil no_gil;
    return cache_;
  }

  [[noreturn]] static void refuse(const char* function) {
    throw Error(function, "cache", "is in use by another call");
  }
  class Reading {
   public:
    Reading(const HeldCache& cache, const char* function) : cache_(cache) {
      int readers = cache_.readers_;
      do {
        if (readers < 0) refuse(function);
      } while (!cache_.readers_.compare_exchange_weak(readers, readers + 1));
    }
    ~Reading() { --cache_.readers_; }
    Reading(const Reading&) = delete;
    Reading& operator=(const Reading&) = delete;

   private:
    const HeldCache& cache_;
  };
  class Changing {
   public:
    Changing(HeldCache& cache, const char* function) : cache_(cache) {
      int readers = 0;
      if (!cache_.readers_.compare_exchange_strong(readers, -1)) refuse(function);
    }
    ~Changing() { cache_.readers_ = 0; }
    Changing(const Changing&) = delete;
    Changing& operator=(const Changing&) = delete;

   private:
    HeldCache& cache_;
  };

  KvCache cache_;
  mutable std::atomic<int> readers_ = 0;  // the calls now reading cache_; -1 while one changes it
};

}  // namespace

void bind_kv_cache(nb::module_& module) {
  const auto any = [] { return nb::arg().none(); };
  nb::class_<HeldCache>(module, kCache)
      .def(nb::init<const nb::tuple&>())
      .def(nb::init<const nb::bytes&>())  // the path of a file
      .def(nb::init<const nb::dict&>())   // a pickle
      .def("__copy__", [](const HeldCache& cache) { return std::make_unique<HeldCache>(cache); })
      .def(
          "__deepcopy__",
          [](const HeldCache& cache, nb::handle /*memo*/) {
            return std::make_unique<HeldCache>(cache);
          },
          nb::arg().none())
      .def("__reduce__",
           [](nb::handle_t<HeldCache> cache) {
             return nb::make_tuple(cache.type(),
                                   nb::make_tuple(nb::cast<const HeldCache&>(cache).pickle()));
           })
      .def("append", &HeldCache::append, any(), any(), any())
      .def("truncate", &HeldCache::truncate, any(), any())
      .def("reserve", &HeldCache::reserve, any())
      .def("reset", &HeldCache::reset)
      .def("reorder", &HeldCache::reorder, any())
      .def("save", &HeldCache::save)
      .def("load", &HeldCache::load)
      .def("attention", &HeldCache::attention, any(), nb::arg(), nb::arg(), any())
      .def("first_key", &HeldCache::first_key, any())
      .def_prop_ro("sizes", &HeldCache::sizes)
      .def_prop_ro("k_pages", &HeldCache::k_pages)
      .def_prop_ro("v_pages", &HeldCache::v_pages)
      .def_prop_ro("block_tables", &HeldCache::block_tables)
      .def_prop_ro("context_lens", &HeldCache::context_lens)
      .def_prop_ro("lengths", &HeldCache::lengths)
      .def_prop_ro("used_pages", &HeldCache::used_pages)
      .def_prop_ro("bytes", &HeldCache::bytes);
}

}  // namespace qkv::python
