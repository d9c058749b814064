// SPDX-License-Identifier: Apache-2.0
#ifndef TESTS_APP_PICTURES_H_
#define TESTS_APP_PICTURES_H_

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <qkv/app/picture.h>
#include <qkv/tensor.h>

namespace qkv::test {

// A picture that owns the memory of its maps.
struct Drawn {
  std::string name{};
  app::Picture picture{};
  std::shared_ptr<std::deque<Tensor>> memory = std::make_shared<std::deque<Tensor>>();
};

// Weights like those of a softmax, largest near the diagonal; each row sums to 1. They are computed
// without libm, so that they are bit-identical everywhere.
Tensor likely_weights(Index queries, Index keys, std::uint32_t seed);
// A mask [queries,keys] in which all values are true.
Tensor all_allowed(Index queries, Index keys);

// Pictures of every kind, small and large.
std::vector<Drawn> drawn_pictures();
// The one of drawn_pictures() with this name.
Drawn drawn_picture(const std::string& name);

}  // namespace qkv::test

#endif  // TESTS_APP_PICTURES_H_
