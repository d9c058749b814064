// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_C_STRUCTS_H_
#define QKV_C_STRUCTS_H_

#include <cstddef>
#include <string_view>

#include <qkv/c.h>

// Structs that begin with their size, and grow at their end from version to version.
namespace qkv::c {

// The most bytes that a caller's struct may have. A larger struct_size shows that none was ever
// set.
inline constexpr std::size_t kMostBytes = 16384;

// The size of a struct in the first version that had it. Every version refuses smaller sizes.
template <class T>
inline constexpr std::size_t kFirstBytes = 0;
template <>
inline constexpr std::size_t kFirstBytes<qkv_inputs> = 1056;
template <>
inline constexpr std::size_t kFirstBytes<qkv_options> = 2584;
template <>
inline constexpr std::size_t kFirstBytes<qkv_outputs> = 2896;
template <>
inline constexpr std::size_t kFirstBytes<qkv_result_shapes> = 296;
template <>
inline constexpr std::size_t kFirstBytes<qkv_saved> = 296;
template <>
inline constexpr std::size_t kFirstBytes<qkv_output_gradients> = 584;
template <>
inline constexpr std::size_t kFirstBytes<qkv_input_gradients> = 1888;

// A struct that a caller passes: its function and name, for messages, and its sizes.
struct Sized {
  std::string_view function;
  std::string_view name;  // the argument that is the struct; empty if struct_size is an argument
  std::size_t known;      // its bytes in this version
  std::size_t first;      // its bytes in the first version
};

// Throws Error unless `bytes` can be the size of the struct in some version.
void check_bytes(const Sized& sized, std::size_t bytes);

// Copies the caller's struct into `to`, which has sized.known bytes and holds the defaults. Throws
// Error for a null pointer, for a size that is not valid, and if the caller's struct is longer and
// not zero beyond sized.known.
void copy_known(const Sized& sized, const void* from, void* to);

// Copies the struct `from` of this version to the caller's struct `to` of `bytes` bytes, as far as
// it fits. Bytes of `to` beyond `known` become 0, and its struct_size becomes `bytes`.
void copy_out(const void* from, std::size_t known, void* to, std::size_t bytes);

template <class T>
T defaults() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}
template <>
qkv_options defaults<qkv_options>();

// Returns the caller's struct as a struct of this version. Fields that the caller's header lacks
// have defaults.
template <class T>
T whole(std::string_view function, std::string_view name, const T* from) {
  static_assert(kFirstBytes<T> != 0 && kFirstBytes<T> <= sizeof(T));
  T value = defaults<T>();
  copy_known({function, name, sizeof(T), kFirstBytes<T>}, from, &value);
  return value;
}

}  // namespace qkv::c

#endif  // QKV_C_STRUCTS_H_
