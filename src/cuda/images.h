// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_IMAGES_H_
#define QKV_CUDA_IMAGES_H_

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

// The fat binaries of the kernels, which nvcc made when the library was built. A build without
// CUDA kernels has none.
namespace qkv::cuda {

struct Image {
  std::string_view name;  // the file src/cuda/device/NAME.cu
  std::span<const std::byte> bytes;
};

const std::vector<Image>& images();

// Returns the image of this name. Throws std::logic_error if the build has none, which is a bug in
// this library.
const Image& image(std::string_view name);

// The version of CUDA that compiled the images, as the driver counts it, 13000 for 13.0; 0 without
// images. linked_images.cc.in defines toolkit_version() and linked_images(); images() calls it
// once.
int toolkit_version();
std::vector<Image> linked_images();

}  // namespace qkv::cuda

#endif  // QKV_CUDA_IMAGES_H_
