// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/array_file.h>
#include <qkv/app/kv_cache_file.h>
#include <qkv/app/utf8.h>
#include <qkv/dtype.h>
#include <qkv/error.h>
#include <qkv/tensor.h>

#include "text/numbers.h"

namespace qkv::app {
namespace {

constexpr std::string_view kFormat = "qkv KvCache 1";

// Calls visit(name, array) for each array of a KvCacheContents. Files use the members' names.
template <class AnyContents, class Visit>
void for_each_array(AnyContents& contents, const Visit& visit) {
  visit("k_pages", contents.k_pages);
  visit("v_pages", contents.v_pages);
  visit("block_tables", contents.block_tables);
  visit("lengths", contents.lengths);
  visit("first_keys", contents.first_keys);
}

// Calls visit(name, size) for each size that no array's shape implies.
template <class AnySizes, class Visit>
void for_each_number(AnySizes& sizes, const Visit& visit) {
  visit("window", sizes.window);
  visit("queries", sizes.queries);
}

Strings one_text(std::string_view text) { return {Dims(), {std::string(text)}}; }

// The arrays of a file by name. Taking an array removes it.
class Fields {
 public:
  Fields(std::string file, std::vector<NamedArray> arrays) : file_(std::move(file)) {
    for (NamedArray& array : arrays) arrays_.emplace(array.name, std::move(array.array));
  }

  [[noreturn]] void fail(std::string_view field, std::string_view detail) const {
    throw InputError(file_, fmt::format("{}: {}", field, detail));
  }
  std::string text(const std::string& name) {
    const auto strings = take<Strings>(name, kText);
    if (strings.values.size() != 1) {
      fail(name, fmt::format("expected one text, got {}", strings.values.size()));
    }
    return strings.values.front();
  }
  Tensor tensor(const std::string& name) { return take<Tensor>(name, kTensor); }
  void expect_none() const {
    if (!arrays_.empty())
      fail(app::quoted(arrays_.begin()->first), "expected no field of this name");
  }

 private:
  static constexpr std::string_view kText = "text";
  static constexpr std::string_view kTensor = "a tensor";

  template <class Kind>
  Kind take(const std::string& name, std::string_view kind) {
    const auto found = arrays_.find(name);
    if (found == arrays_.end()) fail(name, fmt::format("expected {}, got none", kind));
    if (!std::holds_alternative<Kind>(found->second)) {
      const bool is_unread = std::holds_alternative<Unread>(found->second);
      fail(name, fmt::format("expected {}, got {}", kind,
                             is_unread ? describe(found->second)
                                       : std::string(kind == kText ? kTensor : kText)));
    }
    Kind value = std::get<Kind>(std::move(found->second));
    arrays_.erase(found);
    return value;
  }

  std::string file_;
  std::map<std::string, Array> arrays_{};
};

DType dtype_named(Fields& fields) {
  const std::string name = fields.text("dtype");
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kQ8}) {
    if (name == name_of(dtype)) return dtype;
  }
  fields.fail("dtype", fmt::format("expected float32, float64, bfloat16, float16 or q8, got {}",
                                   app::quoted(name)));
}

// ---- blocks as bytes, since safetensors has no type for blocks ----------------------------------

constexpr auto kBlockBytes = static_cast<Index>(sizeof(BlockQ8));

// A view of pages as a file stores them; q8 pages [..,blocks] become uint8 [..,34 * blocks].
ConstView stored(const Tensor& array) {
  if (array.dtype() != DType::kQ8) return array;
  Dims shape = array.shape();
  shape[shape.rank() - 1] *= kBlockBytes;
  return {array.view().data(), DType::kUInt8, shape, contiguous_strides(shape)};
}

// Converts uint8 [..,34 * blocks], as stored in a file, to q8 pages [..,blocks].
Tensor blocks_of(Fields& fields, const char* name, const Tensor& bytes) {
  Dims shape = bytes.shape();
  Index& columns = shape[shape.rank() - 1];
  if (bytes.dtype() != DType::kUInt8 || columns % kBlockBytes != 0) {
    fields.fail(name, fmt::format("expected rows of blocks of {} bytes, as uint8, got {}",
                                  kBlockBytes, describe(bytes)));
  }
  columns /= kBlockBytes;
  Tensor blocks(DType::kQ8, shape);
  const auto from = bytes.values<std::uint8_t>();
  if (!from.empty()) std::memcpy(blocks.view().data(), from.data(), from.size());
  return blocks;
}

KvCacheContents contents_of(Fields& fields) {
  const std::string format = fields.text("format");
  if (format != kFormat) {
    fields.fail("format", fmt::format("expected {}, got {}", app::quoted(std::string(kFormat)),
                                      app::quoted(format)));
  }
  KvCacheContents contents;
  KvCacheSizes& sizes = contents.sizes;
  sizes.dtype = dtype_named(fields);
  for_each_number(sizes, [&](const char* name, Index& value) {
    const std::string text = fields.text(name);
    const auto number = parse_number<Index>(text);
    if (!number)
      fields.fail(name, fmt::format("expected a whole number, got {}", app::quoted(text)));
    value = *number;
  });
  for_each_array(contents, [&](const char* name, Tensor& array) { array = fields.tensor(name); });
  fields.expect_none();
  const auto expect_rank = [&](const char* name, const Tensor& array, int rank) {
    if (array.rank() == rank) return;
    fields.fail(name, fmt::format("expected {} axes, got {}", rank, describe(array)));
  };
  expect_rank("lengths", contents.lengths, 1);
  expect_rank("k_pages", contents.k_pages, 4);
  expect_rank("v_pages", contents.v_pages, 4);
  Index channels = 1;  // in one column of a page
  if (sizes.dtype == DType::kQ8) {
    contents.k_pages = blocks_of(fields, "k_pages", contents.k_pages);
    contents.v_pages = blocks_of(fields, "v_pages", contents.v_pages);
    channels = BlockQ8::kNumbers;
  }
  sizes.B = contents.lengths.size(0);
  sizes.page = contents.k_pages.size(1);
  sizes.G = contents.k_pages.size(2);
  sizes.D = contents.k_pages.size(3) * channels;
  sizes.E = contents.v_pages.size(3) * channels;
  return contents;
}

// The text of a library error without the function's name and the prefix "sizes.", so that it names
// a size as the file's field is named.
std::string detail_of(const Error& error) {
  const std::string_view text = error.what();
  constexpr std::string_view kSizes = "sizes.";
  std::string detail(text.substr(std::min(text.size(), error.function().size() + 2)));
  if (detail.starts_with(kSizes)) detail.erase(0, kSizes.size());
  return detail;
}

}  // namespace

void write_kv_cache(const std::string& path, const KvCache& cache) {
  const KvCacheContents contents = cache.contents();
  const Strings format = one_text(kFormat);
  const Strings dtype = one_text(name_of(contents.sizes.dtype));
  std::vector<std::pair<const char*, Strings>> numbers;
  for_each_number(contents.sizes, [&](const char* name, const Index& value) {
    numbers.emplace_back(name, one_text(fmt::to_string(value)));
  });
  std::vector<NamedView> arrays{{"format", &format}, {"dtype", &dtype}};
  for (const auto& [name, text] : numbers) arrays.push_back({name, &text});
  for_each_array(contents, [&](const char* name, const Tensor& array) {
    arrays.push_back({name, stored(array)});
  });
  write_safetensors(path, arrays);
}

KvCache read_kv_cache(const std::string& path) {
  const std::string file = path == "-" ? "<stdin>" : path;
  Fields fields(file, read_safetensors(path));
  const KvCacheContents contents = contents_of(fields);
  try {
    return KvCache(contents);
  } catch (const Error& error) {
    throw InputError(file, detail_of(error));
  }
}

KvCache read_kv_cache(const std::string& path, const KvCacheSizes& expected) {
  KvCache cache = read_kv_cache(path);
  const KvCacheSizes& got = cache.sizes();
  const auto expect = [&](const char* name, const auto& wanted, const auto& came) {
    if (wanted == came) return;
    throw InputError(path == "-" ? "<stdin>" : path,
                     fmt::format("{}: expected {}, got {}", name, wanted, came));
  };
  expect("dtype", std::string(name_of(expected.dtype)), std::string(name_of(got.dtype)));
  expect("B", expected.B, got.B);
  expect("G", expected.G, got.G);
  expect("D", expected.D, got.D);
  expect("E", expected.E, got.E);
  expect("page", expected.page, got.page);
  expect("window", expected.window, got.window);
  expect("queries", expected.queries, got.queries);
  return cache;
}

}  // namespace qkv::app
