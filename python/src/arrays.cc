// SPDX-License-Identifier: Apache-2.0
#include "arrays.h"

#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <qkv/error.h>

#include "dlpack.h"
#include "numpy.h"
#include "torch_tensor.h"
#include "view_parts.h"

namespace qkv::python {
namespace {

constexpr bool kLittleEndian = std::endian::native == std::endian::little;

// ---- element types --------------------------------------------------------------------------

// Whether a format is a structure of a float16 and 32 int8, as BlockQ8 is, with any field names.
// NumPy marks unaligned fields by ^ or =.
bool is_block_q8(std::string_view format, std::size_t bytes) {
  if (bytes != sizeof(BlockQ8) || !kLittleEndian || !format.starts_with("T{")) return false;
  format.remove_prefix(2);
  if (format.starts_with('^') || format.starts_with('=')) format.remove_prefix(1);
  return format.starts_with("e:") && format.find(":(32)b:") != std::string_view::npos &&
         format.ends_with(":}");
}

// The DType of a PEP 3118 format (the letters of Python's struct); kNone if there is none.
DType dtype_of_format(std::string_view format, std::size_t bytes) {
  if (format.starts_with(kLittleEndian ? '<' : '>') || format.starts_with('=') ||
      format.starts_with('@')) {
    format.remove_prefix(1);
  }
  if (format == "Zd") return DType::kComplex128;
  if (is_block_q8(format, bytes)) return DType::kQ8;
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

// ---- buffers --------------------------------------------------------------------------------

// Gets an object's buffer, and releases it in the destructor. After that, a reference to the object
// keeps the memory alive: NumPy arrays do not move while they are referenced, and other buffers are
// passed as NumPy arrays, which hold them by a memoryview.
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

// Rejects masked entries of numpy.ma, whose underlying data would be read as if they were valid.
void check_unmasked(nb::handle object, const Name& name) {
  const nb::module_ masked = nb::module_::import_("numpy.ma");
  if (nb::cast<bool>(masked.attr("is_masked")(object))) {
    throw_type_error(name, "must have no masked entries, got " + describe(object) +
                               "; keys are masked by mask, padding_mask or key_lengths");
  }
}

// A view of a NumPy array whose class is ndarray itself. The function calls methods of the array,
// which in a derived class could return anything.
Array view_of_plain(nb::handle object, const Name& name) {
  const Buffer buffer(object);
  if (!buffer.taken()) {
    // bfloat16 of ml_dtypes has no format letter in the buffer protocol.
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
    // NumPy writes < and > only for the non-native byte order.
    const bool swapped = format.size() == 2 && format[0] == (kLittleEndian ? '>' : '<') &&
                         dtype_of_format(format.substr(1), unit) != DType::kNone;
    if (!swapped) refuse_dtype(name, object);
    return view_of_plain(object.attr("astype")(object.attr("dtype").attr("newbyteorder")("=")),
                         name);
  }
  const auto layout = layout_of(buffer->ndim, buffer->shape, buffer->strides, buffer->itemsize);
  // A view needs strides in whole elements and aligned memory, which a copy has.
  if (!layout || !is_aligned(buffer->buf, dtype)) return view_of_plain(object.attr("copy")(), name);
  return {ConstView(buffer->buf, dtype, layout->shape, layout->strides), nb::borrow(object), {}};
}

Array view_of_numpy(nb::handle object, const Name& name) {
  if (numpy().is_plain_array(object)) return view_of_plain(object, name);
  // view_of_plain() comes first, since is_masked() fails for dtypes that view_of_plain() rejects.
  Array array = view_of_plain(numpy().as_array(object), name);
  check_unmasked(object, name);
  return array;
}

// Calls make(); errors of View's own rules (sizes, reach) are thrown with the argument's name.
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

bool is_on_gpu(nb::handle object) { return nb::hasattr(object, "__cuda_array_interface__"); }

nb::object numpy_of_sequence(nb::handle object, const Name& name, DType real) {
  nb::object array;
  try {
    array = numpy().as_array(object);
  } catch (nb::python_error& error) {
    // Tensors that require a gradient raise RuntimeError.
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError) &&
        !error.matches(PyExc_RuntimeError)) {
      throw;
    }
    throw_value_error(name, "must be an array or a list of numbers, got a " + describe(object) +
                                ", which is not one (" + text_of(error.value()) + ")");
  }
  if (real == DType::kNone && nb::cast<Index>(array.attr("size")) == 0) {
    return array.attr("astype")(
        numpy().dtype(DType::kInt64));  // an empty list counts as integers too
  }
  const std::string kind = text_of(array.attr("dtype").attr("kind"));
  if (real == DType::kNone || (kind != "f" && kind != "i" && kind != "u")) return array;
  return array.attr("astype")(numpy().dtype(real));
}

}  // namespace

View writable_view(const Array& held, nb::handle array, const Name& name) {
  const ConstView& view = held.view;
  if (!is_writable(array, view.data())) {
    throw_value_error(name,
                      "must be an array of NumPy or PyTorch that can be written to, aligned and in "
                      "this machine's byte order, got " +
                          describe(array));
  }
  return View(const_cast<void*>(view.data()), view.dtype(), view.shape(), view.strides());
}

bool is_writable(nb::handle array, const void* memory) {
  const auto is_at = [&](const nb::object& address) {
    return PyLong_AsVoidPtr(address.ptr()) == memory;
  };
  if (numpy().is_array(array)) {
    return nb::object(array.attr("flags").attr("writeable")).is(Py_True) &&
           is_at(array.attr("ctypes").attr("data"));
  }
  return tensor_class_of(array).plain && is_at(array.attr("data_ptr")());
}

const char* gpu_hint(const Name& name) {
  const bool is_attention = std::string_view(name.function) == "attention";
  return is_attention ? "; qkv.torch.attention takes CUDA tensors" : "";
}

// The name of an object's class: with its module if the class is built in, as in numpy.ndarray. The
// stable ABI has no tp_name.
std::string class_name(nb::handle object) {
  PyTypeObject* const type = Py_TYPE(object.ptr());
  const nb::handle handle(reinterpret_cast<PyObject*>(type));
  std::string name = nb::cast<std::string>(handle.attr("__name__"));
  if ((PyType_GetFlags(type) & Py_TPFLAGS_HEAPTYPE) != 0) return name;
  const std::string module = nb::cast<std::string>(handle.attr("__module__"));
  return module == "builtins" ? name : module + "." + name;
}

std::string describe(nb::handle object) {
  if (object.is_none()) return "None";
  std::string type = class_name(object);
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
    if (tensor_class_of(object).of_torch ||
        (nb::hasattr(object, "__dlpack__") && nb::hasattr(object, "__dlpack_device__"))) {
      return view_of_dlpack(object, name);
    }
    if (PyObject_CheckBuffer(object.ptr()) != 0) {
      return view_of_plain(numpy().as_array(object), name);
    }
    throw_type_error(name, "must be an array (of NumPy, or one that supports DLPack), got " +
                               describe(object) + (is_on_gpu(object) ? gpu_hint(name) : ""));
  });
}

Array array_on_device(nb::handle object, const Name& name) {
  if (object.is_none()) return {};
  if (!nb::isinstance<nb::tuple>(object) || nb::len(object) != 4) {
    throw_type_error(name, "must be in the memory of a GPU, got " + describe(object));
  }
  const auto [address, dtype, shape, strides] =
      nb::cast<std::tuple<std::uintptr_t, std::string, std::vector<Index>, std::vector<Index>>>(
          object);
  return named(name, [&, address = address]() -> Array {
    check_rank(name, static_cast<int>(shape.size()));
    DType found = DType::kNone;
#define QKV_NAMED(enumerator, type, its_name) \
  if (dtype == (its_name)) found = DType::enumerator;
    QKV_FOR_EACH_DTYPE(QKV_NAMED)
#undef QKV_NAMED
    if (found == DType::kNone) {
      throw_type_error(name, std::string("must be ") + name.types + ", got " + dtype);
    }
    auto* const data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
    return {ConstView(data, found, Dims(std::span<const Index>(shape)),
                      Dims(std::span<const Index>(strides))),
            {},
            {}};
  });
}

Array array_or_sequence(nb::handle object, const Name& name, DType real) {
  if (!nb::isinstance<nb::list>(object) && !nb::isinstance<nb::tuple>(object) &&
      PyRange_Check(object.ptr()) == 0) {
    if (!object.is_none() && !nb::hasattr(object, "__dlpack__") &&
        PyObject_CheckBuffer(object.ptr()) == 0) {
      const bool is_of_integers = name.types == std::string_view(kIntegers);
      throw_type_error(name, std::string("must be an array or a list of ") +
                                 (is_of_integers ? "integers" : "numbers") + ", got " +
                                 describe(object) + (is_on_gpu(object) ? gpu_hint(name) : ""));
    }
    return array_of(object, name);
  }
  return array_of(numpy_of_sequence(object, name, real), name);
}

}  // namespace qkv::python
