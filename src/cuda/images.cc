// SPDX-License-Identifier: Apache-2.0
#include "cuda/images.h"

#include <algorithm>
#include <stdexcept>

#include "core/message.h"

namespace qkv::cuda {

const std::vector<Image>& images() {
  static const std::vector<Image> all = linked_images();
  return all;
}

const Image& image(std::string_view name) {
  const auto found = std::ranges::find(images(), name, &Image::name);
  if (found == images().end()) throw std::logic_error(core::text("no CUDA image ", name));
  return *found;
}

}  // namespace qkv::cuda
