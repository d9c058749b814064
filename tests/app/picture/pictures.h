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

// A picture with the memory of its maps.
struct Drawn {
  std::string name{};
  app::Picture picture{};
  std::shared_ptr<std::deque<Tensor>> memory = std::make_shared<std::deque<Tensor>>();
};

// Weights like those of a softmax, each row summing to 1, near the diagonal: computed from
// integers, without libm, so with the same bits everywhere.
Tensor likely_weights(Index queries, Index keys, std::uint32_t seed);
// [queries,keys], all true.
Tensor all_allowed(Index queries, Index keys);

// Every kind of picture, small and large, by name.
std::vector<Drawn> drawn_pictures();
Drawn drawn_picture(const std::string& name);

}  // namespace qkv::test

#endif  // TESTS_APP_PICTURES_H_
