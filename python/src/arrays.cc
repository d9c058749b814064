// SPDX-License-Identifier: Apache-2.0
#include "arrays.h"

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string_view>

#include <qkv/error.h>

#include "numpy.h"

namespace qkv::python {
namespace {

constexpr bool kLittleEndian = std::endian::native == std::endian::little;

// ---- element types --------------------------------------------------------------------------

DType signed_integer(std::size_t bytes) {
  constexpr std::array kTypes = {DType::kInt8, DType::kInt16, DType::kInt32, DType::kInt64};
  return bytes == 0 || bytes > 8 || !std::has_single_bit(bytes)
             ? DType::kNone
             : kTypes[static_cast<std::size_t>(std::countr_zero(bytes))];
}

DType unsigned_integer(std::size_t bytes) {
  constexpr std::array kTypes = {DType::kUInt8, DType::kUInt16, DType::kUInt32, DType::kUInt64};
  return bytes == 0 || bytes > 8 || !std::has_single_bit(bytes)
             ? DType::kNone
             : kTypes[static_cast<std::size_t>(std::countr_zero(bytes))];
}

// A format of PEP 3118 (struct's letters). kNone for what there is no DType for.
DType dtype_of_format(std::string_view format, std::size_t bytes) {
  if (format.starts_with(kLittleEndian ? '<' : '>') || format.starts_with('=') ||
      format.starts_with('@')) {
    format.remove_prefix(1);
  }
  if (format == "Zd") return DType::kComplex128;
  if (format.size() != 1) return DType::kNone;
  switch (format[0]) {
    case 'e':
      return DType::kFloat16;
    case 'f':
      return DType::kFloat32;
    case 'd':
      return DType::kFloat64;
    case '?':
      return DType::kBool;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
    case 'n':
      return signed_integer(bytes);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
    case 'N':
      return unsigned_integer(bytes);
    default:
      return DType::kNone;
  }
}

DType dtype_of_dlpack(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  if (dtype.lanes != 1 || dtype.bits % 8 != 0) return DType::kNone;
  const std::size_t bytes = dtype.bits / 8;
  switch (static_cast<Code>(dtype.code)) {
    case Code::Float:
      if (bytes == 2) return DType::kFloat16;
      return bytes == 4 ? DType::kFloat32 : bytes == 8 ? DType::kFloat64 : DType::kNone;
    case Code::Bfloat:
      return bytes == 2 ? DType::kBFloat16 : DType::kNone;
    case Code::Bool:
      return bytes == 1 ? DType::kBool : DType::kNone;
    case Code::Int:
      return signed_integer(bytes);
    case Code::UInt:
      return unsigned_integer(bytes);
    case Code::Complex:
      return bytes == 16 ? DType::kComplex128 : DType::kNone;
    default:
      return DType::kNone;
  }
}

// ---- views ----------------------------------------------------------------------------------

// str(object); what UTF-8 has no bytes for (lone surrogates) is escaped.
std::string text_of(nb::handle object) {
  const nb::object text = nb::str(object);
  const char* const utf8 = PyUnicode_AsUTF8(text.ptr());
  if (utf8 != nullptr) return utf8;
  PyErr_Clear();
  return nb::cast<std::string>(nb::steal(PyObject_ASCII(text.ptr())));
}

[[noreturn]] void refuse_dtype(const Name& name, nb::handle object) {
  std::string dtype = "an unknown dtype";
  if (nb::hasattr(object, "dtype")) dtype = text_of(object.attr("dtype"));
  std::string shape;
  if (nb::hasattr(object, "shape")) {
    for (nb::handle size : nb::tuple(object.attr("shape"))) {
      shape += (shape.empty() ? "" : ",") + text_of(size);
    }
  }
  throw_type_error(name,
                   "must be " + std::string(name.types) + ", got " + dtype + " [" + shape + "]");
}

void check_rank(const Name& name, int rank) {
  if (rank <= kMaxRank) return;
  throw_value_error(
      name, "must have at most " + std::to_string(kMaxRank) + " axes, got " + std::to_string(rank));
}

// Shape and strides in bytes as Dims; nothing when the strides are no multiples of the element.
struct ArrayLayout {
  Dims shape, strides;
};
template <class Size, class Stride>
std::optional<ArrayLayout> layout_of(int rank, const Size* shape, const Stride* strides,
                                     Index unit) {
  ArrayLayout layout;
  for (int axis = 0; axis < rank; ++axis) {
    layout.shape.push_back(static_cast<Index>(shape[axis]));
    const auto stride = static_cast<Index>(strides[axis]);
    // The stride of an axis of one element, or of an empty array, may be anything.
    if (stride % unit != 0 && shape[axis] > 1) return std::nullopt;
    layout.strides.push_back(stride / unit);
  }
  return layout;
}

bool is_aligned(const void* data, DType dtype) {
  const std::size_t unit = dtype == DType::kComplex128 ? 8 : size_of(dtype);
  return reinterpret_cast<std::uintptr_t>(data) % unit == 0;
}

// ---- buffers --------------------------------------------------------------------------------

// Released on every way out. NumPy arrays stay where they are as long as they are referenced, so
// for them a reference replaces the buffer; others are held by a memoryview.
class Buffer {
 public:
  explicit Buffer(nb::handle object)
      : taken_(PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_FULL_RO) == 0) {
    if (!taken_) PyErr_Clear();
  }
  ~Buffer() {
    if (taken_) PyBuffer_Release(&buffer_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  bool taken() const { return taken_; }
  const Py_buffer& operator*() const { return buffer_; }
  const Py_buffer* operator->() const { return &buffer_; }

 private:
  Py_buffer buffer_{};
  bool taken_;
};

// Masked entries would be read as what lies beneath.
void check_unmasked(nb::handle object, const Name& name) {
  const nb::module_ masked = nb::module_::import_("numpy.ma");
  if (nb::cast<bool>(masked.attr("is_masked")(object))) {
    throw_type_error(name,
                     "must have no masked entries, got " + describe(object) +
                         "; which keys are seen is said by mask, padding_mask or key_lengths");
  }
}

// Of an array of the class itself: what a method of another class gives could be anything.
Array view_of_plain(nb::handle object, const Name& name) {
  const Buffer buffer(object);
  if (!buffer.taken()) {
    // bfloat16 of ml_dtypes has no letter in the buffer protocol.
    if (text_of(object.attr("dtype")) != "bfloat16") refuse_dtype(name, object);
    Array bits = view_of_plain(object.attr("view")("uint16"), name);
    bits.view =
        ConstView(bits.view.data(), DType::kBFloat16, bits.view.shape(), bits.view.strides());
    return bits;
  }
  check_rank(name, buffer->ndim);
  const std::string_view format = buffer->format == nullptr ? "B" : buffer->format;
  const auto unit = static_cast<std::size_t>(buffer->itemsize);
  const DType dtype = dtype_of_format(format, unit);
  if (dtype == DType::kNone) {
    // NumPy says < and > only of the other byte order.
    const bool swapped = format.size() == 2 && format[0] == (kLittleEndian ? '>' : '<') &&
                         dtype_of_format(format.substr(1), unit) != DType::kNone;
    if (!swapped) refuse_dtype(name, object);
    return view_of_plain(object.attr("astype")(object.attr("dtype").attr("newbyteorder")("=")),
                         name);
  }
  const auto layout = layout_of(buffer->ndim, buffer->shape, buffer->strides, buffer->itemsize);
  // What no view can describe, as something that one can.
  if (!layout || !is_aligned(buffer->buf, dtype)) return view_of_plain(object.attr("copy")(), name);
  return {ConstView(buffer->buf, dtype, layout->shape, layout->strides), nb::borrow(object), {}};
}

Array view_of_numpy(nb::handle object, const Name& name) {
  if (numpy().is_plain_array(object)) return view_of_plain(object, name);
  check_unmasked(object, name);
  return view_of_plain(numpy().as_array(object), name);
}

// ---- DLPack ---------------------------------------------------------------------------------

constexpr int kCpu = 1;  // kDLCPU

// Who follows PyTorch's advice to detach loses the gradient.
const char* autograd_hint(nb::handle object) {
  const bool asks =
      nb::hasattr(object, "requires_grad") && nb::object(object.attr("requires_grad")).is(Py_True);
  return asks ? "; under autograd call qkv.torch.attention" : "";
}

// What a method of DLPack gives. Its refusal (a tensor that requires gradients, say) becomes one of
// the argument; anything else that it raises goes on.
nb::object asked(nb::handle object, const char* method, const Name& name) {
  try {
    return object.attr(method)();
  } catch (nb::python_error& error) {
    for (PyObject* const kind :
         {PyExc_BufferError, PyExc_ValueError, PyExc_TypeError, PyExc_RuntimeError}) {
      if (!error.matches(kind)) continue;
      throw_type_error(name, "must be an array on the CPU that gives its memory, got " +
                                 describe(object) + " (" + text_of(error.value()) + ")" +
                                 autograd_hint(object));
    }
    throw;
  }
}

long device_type_of(nb::handle object, const Name& name) {
  const nb::object device = asked(object, "__dlpack_device__", name);
  if (PyTuple_Check(device.ptr()) && PyTuple_GET_SIZE(device.ptr()) == 2) {
    const nb::handle type = PyTuple_GET_ITEM(device.ptr(), 0);
    if (PyIndex_Check(type.ptr()) != 0) {
      int overflow = 0;  // gives -1, which is no device
      const long number = PyLong_AsLongAndOverflow(type.ptr(), &overflow);
      if (number == -1 && PyErr_Occurred() != nullptr) nb::raise_python_error();
      return number;
    }
  }
  throw_type_error(name, "must give a pair of integers as its DLPack device, got " +
                             describe(device) + " of " + describe(object));
}

// A tensor of PyTorch with its negative bit set, which DLPack does not carry.
bool is_negated(nb::handle object) {
  const nb::object torch = nb::module_::import_("sys").attr("modules").attr("get")("torch");
  return !torch.is_none() && nb::hasattr(torch, "Tensor") &&
         nb::isinstance(object, nb::object(torch.attr("Tensor"))) &&
         object.attr("is_neg")().is(Py_True);
}

Array view_of_dlpack(nb::handle object, const Name& name) {
  const long device_type = device_type_of(object, name);
  if (device_type != kCpu) {
    std::string where = "DLPack device type " + std::to_string(device_type);
    if (nb::hasattr(object, "device")) where = text_of(object.attr("device"));
    throw_type_error(name, "must be an array on the CPU, got " + describe(object) + " on " + where);
  }
  // PyTorch may keep the sign of what it views beside the memory.
  const nb::object plain =
      is_negated(object) ? nb::object(object.attr("resolve_neg")()) : nb::borrow(object);
  const nb::object capsule = asked(plain, "__dlpack__", name);
  nb::ndarray<nb::ro> tensor;
  // The tensor has the last word on where it is.
  if (!nb::try_cast(capsule, tensor) || tensor.device_type() != kCpu) {
    throw_type_error(name, "must give a DLPack tensor of the CPU, got " + describe(object));
  }
  check_rank(name, static_cast<int>(tensor.ndim()));
  const DType dtype = dtype_of_dlpack(tensor.dtype());
  if (dtype == DType::kNone) refuse_dtype(name, object);
  const auto layout =
      layout_of(static_cast<int>(tensor.ndim()), tensor.shape_ptr(), tensor.stride_ptr(), Index{1});
  const void* data = static_cast<const char*>(tensor.data_handle()) + tensor.byte_offset();
  if (!is_aligned(data, dtype)) {
    throw_value_error(name, "must be aligned for its elements, got " + describe(object));
  }
  return {ConstView(data, dtype, layout->shape, layout->strides), plain, tensor};
}

// The views' own rules (sizes, reach) speak of View; here of the argument.
template <class Make>
Array named(const Name& name, const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    if (error.function() == name.function) throw;
    throw Error(name.function, name.argument,
                std::string(error.what()).substr(error.function().size() + 2), error.kind());
  }
}

nb::object numpy_of_sequence(nb::handle object, const Name& name, DType real) {
  nb::object array;
  try {
    array = numpy().as_array(object);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError)) throw;
    throw_value_error(name, "must be an array or a list of numbers, got a " + describe(object) +
                                ", which is none (" + text_of(error.value()) + ")");
  }
  if (real == DType::kNone && nb::cast<Index>(array.attr("size")) == 0) {
    return array.attr("astype")(numpy().dtype(DType::kInt64));  // no numbers are integers, too
  }
  const std::string kind = text_of(array.attr("dtype").attr("kind"));
  if (real == DType::kNone || (kind != "f" && kind != "i" && kind != "u")) return array;
  return array.attr("astype")(numpy().dtype(real));
}

}  // namespace

void throw_type_error(const Name& name, const std::string& detail) {
  throw Error(name.function, name.argument, detail, ErrorKind::kType);
}

void throw_value_error(const Name& name, const std::string& detail) {
  throw Error(name.function, name.argument, detail);
}

std::string describe(nb::handle object) {
  if (object.is_none()) return "None";
  std::string type = Py_TYPE(object.ptr())->tp_name;
  if (nb::isinstance<nb::str>(object) || nb::isinstance<nb::int_>(object) ||
      nb::isinstance<nb::float_>(object)) {
    std::string shown = nb::cast<std::string>(nb::repr(object));
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    return type + " " + shown;
  }
  if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) {
    return type + " of length " + std::to_string(nb::len(object));
  }
  return type;
}

Array array_of(nb::handle object, const Name& name) {
  if (object.is_none()) return {};
  return named(name, [&]() -> Array {
    if (numpy().is_array(object)) return view_of_numpy(object, name);
    if (nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__")) {
      return view_of_dlpack(object, name);
    }
    if (PyObject_CheckBuffer(object.ptr()) != 0) {
      return view_of_plain(numpy().as_array(object), name);
    }
    throw_type_error(
        name, "must be an array (of NumPy, or one that speaks DLPack), got " + describe(object));
  });
}

Array array_or_sequence(nb::handle object, const Name& name, DType real) {
  if (!nb::isinstance<nb::list>(object) && !nb::isinstance<nb::tuple>(object)) {
    if (!object.is_none() && !nb::hasattr(object, "__dlpack__") &&
        PyObject_CheckBuffer(object.ptr()) == 0) {
      throw_type_error(name, "must be an array or a list of numbers, got " + describe(object));
    }
    return array_of(object, name);
  }
  return array_of(numpy_of_sequence(object, name, real), name);
}

}  // namespace qkv::python
