// SPDX-License-Identifier: Apache-2.0
#include "files/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <qkv/app/utf8.h>
#include <qkv/error.h>

#include "files/array_formats.h"
#include "files/file.h"
#include "files/npy_header.h"

namespace qkv::files {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written byte for byte");
static_assert(sizeof(bool) == 1);

void swap_bytes(std::byte* data, Index bytes, Index word) {
  for (Index at = 0; at + word <= bytes; at += word) std::reverse(data + at, data + at + word);
}

// The strides of an array in Fortran order: the first axis runs fastest.
Dims fortran_strides(const Dims& shape) {
  Dims strides = shape;
  Index stride = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    strides[axis] = stride;
    stride *= std::max<Index>(1, shape[axis]);
  }
  return strides;
}

Tensor read_numbers(ByteSource& source, const NpyHeader& header) {
  Tensor tensor = read_tensor(source, header.dtype, header.shape);
  auto* const data = static_cast<std::byte*>(tensor.view().data());
  if (header.swapped) {
    swap_bytes(data, tensor.element_count() * header.item_size, header.item_size);
  }
  if (!header.fortran_order || header.shape.rank() < 2) return tensor;
  return contiguous(ConstView(data, header.dtype, header.shape, fortran_strides(header.shape)));
}

// Reads the letters of one text element. The zeros that pad it are not stored, since they may be
// most of the file.
template <class Letter>
std::basic_string<Letter> read_letters(ByteSource& source, const NpyHeader& header) {
  std::array<Letter, 4096> part;
  std::basic_string<Letter> text;
  std::size_t zeros = 0;  // zeros read since the last nonzero letter
  for (auto left = static_cast<std::size_t>(header.item_size) / sizeof(Letter); left > 0;) {
    const std::size_t count = std::min(left, part.size());
    const auto bytes = static_cast<Index>(count * sizeof(Letter));
    source.read_all(part.data(), count * sizeof(Letter));
    if (header.swapped) {
      swap_bytes(reinterpret_cast<std::byte*>(part.data()), bytes, sizeof(Letter));
    }
    const std::basic_string_view<Letter> letters(part.data(), count);
    const std::size_t end = letters.find_last_not_of(Letter{}) + 1;
    if (end > 0) {
      text.append(zeros, Letter{}).append(letters.substr(0, end));
      zeros = 0;
    }
    zeros += count - end;
    left -= count;
  }
  return text;
}

std::string read_text(ByteSource& source, const NpyHeader& header) {
  if (header.kind == NpyKind::kBytes) {
    std::string text = read_letters<char>(source, header);
    if (!app::from_utf8(text)) source.fail("expected text in UTF-8, got " + app::quoted(text));
    return text;
  }
  const std::u32string letters = read_letters<char32_t>(source, header);
  for (const char32_t c : letters) {
    if (c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) {
      source.fail(
          fmt::format("expected Unicode text, got the number {}", static_cast<unsigned>(c)));
    }
  }
  return app::to_utf8(letters);
}

app::Strings read_strings(ByteSource& source, const NpyHeader& header) {
  // A limit is needed because the file's size does not bound the number of empty elements.
  constexpr Index kMostEmpty = Index{1} << 16;
  const Index count = element_count(header.shape);
  if (header.item_size == 0 && count > kMostEmpty) {
    source.fail(fmt::format("expected at most {} empty texts, got {}", kMostEmpty, count));
  }
  app::Strings strings{header.shape, {}};
  for (Index i = 0; i < count; ++i) strings.values.push_back(read_text(source, header));
  if (!header.fortran_order || header.shape.rank() < 2) return strings;

  std::vector<Index> indices(static_cast<std::size_t>(count));
  for (Index i = 0; i < count; ++i) indices[static_cast<std::size_t>(i)] = i;
  const Tensor order =
      contiguous(ConstView(indices.data(), header.shape, fortran_strides(header.shape)));
  app::Strings in_c_order{header.shape, {}};
  for (const Index index : order.values<Index>()) {
    in_c_order.values.push_back(strings.values[static_cast<std::size_t>(index)]);
  }
  return in_c_order;
}

}  // namespace

NpyImage::NpyImage(std::string_view function, std::string_view name, const app::ArrayView& array) {
  const auto* const view = std::get_if<ConstView>(&array);
  const std::string broken =
      view != nullptr ? set_numbers(*view) : set_text(*std::get<const app::Strings*>(array));
  if (!broken.empty()) throw Error(function, name, broken);
}

std::string NpyImage::set_numbers(const ConstView& view) {
  const bool narrow = view.dtype() == DType::kBFloat16;
  const DType dtype = narrow ? DType::kFloat32 : view.dtype();
  const std::string descr = npy_descr(dtype);
  if (descr.empty()) return fmt::format("must be real, bool or integer, got {}", describe(view));
  if (narrow || !view.is_contiguous()) copy_ = convert(view, dtype);
  data_ = copy_.given() ? copy_.view().data() : view.data();
  size_ = static_cast<std::size_t>(view.element_count()) * size_of(dtype);
  header_ = npy_header(descr, view.shape());
  return "";
}

std::string NpyImage::set_text(const app::Strings& strings) {
  if (element_count(strings.shape) != static_cast<Index>(strings.values.size())) {
    return fmt::format("has {} texts for shape {}", strings.values.size(),
                       to_string(strings.shape));
  }
  std::size_t longest = 1;  // as in NumPy's own arrays of empty text
  std::vector<std::u32string> texts;
  for (const std::string& value : strings.values) {
    auto text = app::from_utf8(value);
    if (!text) return "must be UTF-8, got " + app::quoted(value);
    if (text->ends_with(U'\0')) return "must not end in a zero character";
    longest = std::max(longest, text->size());
    texts.push_back(*std::move(text));
  }
  for (std::u32string& text : texts) {
    text.resize(longest, U'\0');
    letters_ += text;
  }
  data_ = letters_.data();
  size_ = letters_.size() * sizeof(char32_t);
  header_ = npy_header(fmt::format("<U{}", longest), strings.shape);
  return "";
}

app::NamedArray read_npy(ByteSource& source) {
  const NpyHeader header = read_npy_header(source);
  const app::Storage storage =
      header.fortran_order ? app::Storage::kFortranOrder : app::Storage::kCOrder;
  if (header.kind == NpyKind::kNumber) return {"", read_numbers(source, header), storage};
  return {"", read_strings(source, header), storage};
}

std::vector<app::NamedArray> read_npy(InputFile& file) {
  check_head(file, is_npy, "a .npy file");
  ByteSource source = byte_source(file);
  std::vector<app::NamedArray> arrays;
  arrays.push_back(read_npy(source));
  return arrays;
}

}  // namespace qkv::files

namespace qkv::app {

void write_npy(const std::string& path, const ArrayView& array) {
  const files::NpyImage image("write_npy", "array", array);
  files::OutputFile file(path);
  file.write(image.header().data(), image.header().size());
  file.write(image.data(), image.data_size());
  file.commit();
}

Array read_npy(const std::string& path, const std::atomic<bool>* stop) {
  files::InputFile file(path, stop);
  return std::move(files::read_npy(file).front().array);
}

}  // namespace qkv::app
