// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <qkv/app/attention_file.h>
#include <qkv/app/utf8.h>
#include <qkv/error.h>

namespace qkv::app {
namespace {

constexpr LeadingAxis kUsualOrder[] = {LeadingAxis::kExamples, LeadingAxis::kLayers,
                                       LeadingAxis::kHeads};
constexpr std::string_view kAxisNames[] = {"examples", "layers", "heads"};
constexpr int kLeading = 3;

std::string_view name_of(LeadingAxis axis) { return kAxisNames[static_cast<std::size_t>(axis)]; }

std::string names_of(std::span<const LeadingAxis> order) {
  std::string text;
  for (const LeadingAxis axis : order) text += fmt::format("{}, ", name_of(axis));
  return text + "queries, keys";
}

std::string list_of(std::span<const NamedArray> arrays) {
  if (arrays.empty()) return "no arrays";
  constexpr std::size_t kMostNamed = 8;
  std::string text;
  for (std::size_t n = 0; n < std::min(arrays.size(), kMostNamed); ++n) {
    // quoted() escapes control characters; its quotes are dropped.
    const std::string name = quoted(arrays[n].name);
    text += fmt::format("{}{} {}", n == 0 ? "" : ", ", name.substr(1, name.size() - 2),
                        describe(arrays[n].array));
  }
  if (arrays.size() > kMostNamed) text += fmt::format(" and {} more", arrays.size() - kMostNamed);
  return text;
}

// Builds an AttentionFile from one file's arrays.
class Reader {
 public:
  Reader(const std::string& file, std::vector<NamedArray> arrays)
      : file_(file), arrays_(std::move(arrays)) {}

  AttentionFile read(const AttentionFileOptions& options) {
    name_ = options.name;
    take_attn();
    set_order(options.order);
    take_mask();
    take_rows();
    take_entropy();
    result_.src = tokens("src", "keys", result_.attn.size(4));
    result_.tgt = tokens("tgt", "queries", result_.attn.size(3));
    const bool square = result_.attn.size(3) == result_.attn.size(4);
    result_.same_tokens = result_.tgt.empty() && square && result_.rows.empty();
    if (result_.same_tokens) result_.tgt = result_.src;
    if (const Array* axes = find("axes")) result_.axes = names(*axes);
    result_.line = sentences("line");
    result_.translation = sentences("translation");
    if (name_ == "attn") result_.quantity = quantity();
    return std::move(result_);
  }

 private:
  [[noreturn]] void fail(const std::string& detail) const { throw InputError(file_, detail); }

  Array* find(std::string_view name) {
    for (NamedArray& array : arrays_) {
      if (array.name == name && &array.array != attn_) return &array.array;
    }
    return nullptr;
  }

  void take_attn() {
    const bool alone = arrays_.size() == 1 && arrays_.front().name.empty();  // a .npy file
    Array* found = alone ? &arrays_.front().array : find(name_);
    if (found == nullptr) {
      fail(fmt::format("expected an array called {} (the weights, rows are queries{}), got {}",
                       name_, name_ == "attn" ? "; FILE:NAME names another" : "",
                       list_of(arrays_)));
    }
    auto* attn = std::get_if<Tensor>(found);
    if (attn == nullptr || !is_real(attn->dtype())) {
      fail(fmt::format("{} must be float64, float32, bfloat16 or float16, got {}", name_,
                       describe(*found)));
    }
    if (attn->rank() < 2 || attn->rank() > 2 + kLeading) {
      fail(fmt::format("{} must have 2 to 5 axes ({}), got {}", name_, names_of(kUsualOrder),
                       describe(*found)));
    }
    if (attn->element_count() == 0) {
      fail(fmt::format("{} must not be empty, got {}", name_, describe(*found)));
    }
    attn_ = found;
    result_.attn_memory = std::move(*attn);
    stored_ = to_string(result_.attn_memory.shape());
  }

  // The name of the attention array and its stored shape for messages, such as "attn [2,6,6]".
  std::string attn() const { return name_ + " " + stored_; }

  void set_order(const std::vector<LeadingAxis>& wanted) {
    const auto axes = static_cast<std::size_t>(result_.attn_memory.rank() - 2);
    if (!wanted.empty() && wanted.size() != axes) {
      fail(fmt::format("{} has {} axes before queries and keys ({}), but their order names {}: {}",
                       name_, axes, attn(), wanted.size(), names_of(wanted)));
    }
    result_.order = wanted;
    if (wanted.empty()) result_.order.assign(std::end(kUsualOrder) - axes, std::end(kUsualOrder));
    result_.attn = arranged(result_.attn_memory.view());
  }

  // Permutes the axes of a stored array to [N,L,H,Tq,Tk]; axes that the file lacks have size 1.
  ConstView arranged(const ConstView& stored) const {
    Dims shape{1, 1, 1, stored.size(-2), stored.size(-1)};
    Dims strides{0, 0, 0, stored.stride(-2), stored.stride(-1)};
    for (std::size_t n = 0; n < result_.order.size(); ++n) {
      const auto axis = static_cast<int>(result_.order[n]);
      shape[axis] = stored.size(static_cast<int>(n));
      strides[axis] = stored.stride(static_cast<int>(n));
    }
    return {stored.data(), stored.dtype(), shape, strides};
  }

  void take_mask() {
    Array* found = find("mask");
    if (found == nullptr) return;
    auto* mask = std::get_if<Tensor>(found);
    if (mask == nullptr || (mask->dtype() != DType::kBool && !is_integer(mask->dtype()))) {
      fail(fmt::format("mask must be bool or integers (0 = masked), got {}", describe(*found)));
    }
    ConstView stretched;
    try {
      result_.mask_memory =
          mask->dtype() == DType::kBool ? std::move(*mask) : convert(mask->view(), DType::kBool);
      stretched = broadcast_to(result_.mask_memory.view(), result_.attn_memory.shape());
    } catch (const Error&) {
      fail(
          fmt::format("mask {} does not broadcast to {}; a mask of keys, [examples, keys], needs "
                      "axes of size 1: mask[:, None, ..., None, :]",
                      to_string(result_.mask_memory.shape()), attn()));
    }
    result_.mask = arranged(stretched);
  }

  // Reads the array `rows`: row i of attn is for query rows[i]. If that is i for every
  // row, result_.rows is left empty.
  void take_rows() {
    const Array* found = find("rows");
    if (found == nullptr) return;
    const Index count = result_.attn.size(3);
    const auto* rows = std::get_if<Tensor>(found);
    if (rows == nullptr || !is_integer(rows->dtype()) || rows->shape() != Dims{count}) {
      fail(fmt::format("rows must be integers [{}], the query of each row of {}, got {}", count,
                       attn(), describe(*found)));
    }
    const Tensor wide = [&] {
      try {
        return convert(rows->view(), DType::kInt64);
      } catch (const Error&) {
        fail("rows must be queries below 2^63, got a larger number");
      }
    }();
    bool is_identity = true;
    for (const std::int64_t query : wide.values<std::int64_t>()) {
      const std::size_t at = result_.rows.size();
      if (query < 0) fail(fmt::format("rows must be queries from 0, got {} at {}", query, at));
      if (at > 0 && query <= result_.rows.back()) {
        fail(
            fmt::format("rows must ascend, got {} after {} at {}", query, result_.rows.back(), at));
      }
      is_identity = is_identity && query == static_cast<std::int64_t>(at);
      result_.rows.push_back(query);
    }
    if (is_identity) result_.rows.clear();
  }

  // Reads the array `entropy` of a file with pooled maps: the entropies of the rows before pooling,
  // map after map as in attn. An array that has no more rows than attn, or other leading axes,
  // is ignored, since it is not meant for this reader.
  void take_entropy() {
    Array* found = find("entropy");
    const auto* entropy = found == nullptr ? nullptr : std::get_if<Tensor>(found);
    if (entropy == nullptr || !is_real(entropy->dtype()) || entropy->rank() < 1) return;
    const Index rows = entropy->size(-1);
    if (rows <= result_.attn.size(3) ||
        maps_of(entropy->shape(), 1) != maps_of(stored_shape(), 2)) {
      return;
    }
    Dims shape = stored_shape();
    shape[shape.rank() - 2] = 1;
    shape[shape.rank() - 1] = rows;
    result_.entropy_memory = convert(entropy->view(), DType::kFloat64);
    result_.row_entropy = arranged(reshape(result_.entropy_memory.view(), shape));
  }

  const Dims& stored_shape() const { return result_.attn_memory.shape(); }

  // The sizes, except 1, of the axes that count maps: all axes but the last `others`.
  static std::vector<Index> maps_of(const Dims& shape, int others) {
    std::vector<Index> sizes(shape.begin(), shape.end() - others);
    std::erase(sizes, 1);
    return sizes;
  }

  // Reads the token lists in the array `name`: one list of `length` tokens for each example. A
  // single list serves all examples.
  std::vector<Tokens> tokens(std::string_view name, std::string_view axis, Index length) {
    Array* found = find(name);
    if (found == nullptr) return {};
    const auto* text = std::get_if<Strings>(found);
    if (text == nullptr) {
      fail(fmt::format("{} must be text, one token for each of the {} {}, got {}", name, length,
                       axis, describe(*found)));
    }
    const int rank = text->shape.rank();
    if (rank != 1 && rank != 2) {
      fail(fmt::format("{} must be a list of {} tokens, or one such list for each example, got {}",
                       name, length, describe(*found)));
    }
    if (text->shape[rank - 1] != length) {
      fail(fmt::format("{} has {} tokens but {} has {} {} ({})", name, text->shape[rank - 1], name_,
                       length, axis, attn()));
    }
    const Index examples = result_.attn.size(0);
    if (rank == 2 && text->shape[0] != examples) fail(wrong_examples(name, text->shape[0]));
    std::vector<Tokens> lists(static_cast<std::size_t>(examples));
    for (std::size_t n = 0; n < lists.size(); ++n) {
      const auto begin =
          text->values.begin() + (rank == 2 ? static_cast<std::ptrdiff_t>(n) * length : 0);
      lists[n].assign(begin, begin + length);
    }
    return lists;
  }

  std::vector<std::string> names(const Array& array) const {
    const auto* text = std::get_if<Strings>(&array);
    if (text == nullptr || text->shape != Dims{2}) {
      fail(fmt::format("axes must be text [2], the names of rows and columns, got {}",
                       describe(array)));
    }
    return text->values;
  }

  // Reads the text array `name`, one line for each example. An array that is not text is ignored,
  // since it is not meant for this reader.
  Strings sentences(std::string_view name) {
    Array* found = find(name);
    auto* text = found == nullptr ? nullptr : std::get_if<Strings>(found);
    if (text == nullptr) return {};
    if (text->shape != Dims{result_.attn.size(0)}) {
      fail(fmt::format("{} must be text [{}], one for each example, got {}", name,
                       result_.attn.size(0), describe(*found)));
    }
    return std::move(*text);
  }

  // Reads the text array `quantity`; "" if there is none. An array that is not text is ignored.
  std::string quantity() {
    const Array* found = find("quantity");
    const auto* text = found == nullptr ? nullptr : std::get_if<Strings>(found);
    if (text == nullptr) return {};
    if (text->values.size() != 1) {
      fail(fmt::format("quantity must be text [1], the name of the numbers in {}, got {}", name_,
                       describe(*found)));
    }
    return text->values.front();
  }

  // The message for a number of token lists that is not the number of examples. It suggests another
  // order of the axes if a leading axis has as many entries as there are lists.
  std::string wrong_examples(std::string_view name, Index lists) const {
    std::string text = fmt::format(
        "{} must have one list of tokens for each example, got {} where {} has N = {} ({} read as "
        "{})",
        name, lists, name_, result_.attn.size(0), attn(), names_of(result_.order));
    if (std::count(result_.attn_memory.shape().begin(), result_.attn_memory.shape().end() - 2,
                   lists) > 0) {
      text += "; if the axes have another order, name it (--order)";
    }
    return text;
  }

  const std::string& file_;
  std::vector<NamedArray> arrays_;
  std::string name_{};           // name of the array used as attn
  const Array* attn_ = nullptr;  // the array used as attn, which has no other role
  std::string stored_{};         // the shape of attn in the file, for messages
  AttentionFile result_{};
};

}  // namespace

bool has_attention(std::span<const NamedArray> arrays) {
  return std::any_of(arrays.begin(), arrays.end(),
                     [](const NamedArray& array) { return array.name == "attn"; });
}

AttentionFile read_attention_file(const std::string& path, const AttentionFileOptions& options) {
  return attention_from(path == "-" ? "<stdin>" : path, read_arrays(path, options.stop), options);
}

AttentionFile attention_from(const std::string& file, std::vector<NamedArray> arrays,
                             const AttentionFileOptions& options) {
  for (auto axis = options.order.begin(); axis != options.order.end(); ++axis) {
    if (std::count(axis, options.order.end(), *axis) > 1) {
      throw Error("attention_from", "order",
                  fmt::format("must name each axis once, got {}", names_of(options.order)));
    }
  }
  return Reader(file, std::move(arrays)).read(options);
}

}  // namespace qkv::app
