// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include <qkv/layers/parameters.h>
#include <qkv/layers/run.h>

#include "core/message.h"
#include "core/storage.h"
#include "layers/streams.h"

namespace qkv {

std::uint64_t dropout_seed(const RunState& run) noexcept {
  const auto words = layers::draw(run.seed, layers::Stream::kDropoutSeed, run.step, 0);
  return layers::joined(words[0], words[1]);
}

namespace detail {

// Elements 2n and 2n+1 use words (0, 1) and (2, 3) of counter n. The upper 53 of the 64 bits plus
// half a step give the midpoints of 2^53 equal intervals of (0, 1), rounded to a float64
// below 1.
void initialise(const BasicParameter<Tensor>& parameter, std::uint64_t seed, Index index) {
  if (index < 0 || index > Index{0xFFFFFFFF}) {
    throw Error("initialise", "first", core::text("must be in 0..2^32-1, got ", index));
  }
  const double bound = 1 / std::sqrt(static_cast<double>(parameter.fan_in));
  const View target = parameter.value.view();
  for (Index element = 0; element < target.element_count(); ++element) {
    const auto words =
        layers::draw(seed, layers::Stream::kInitialise, static_cast<std::uint64_t>(element / 2),
                     static_cast<std::uint32_t>(index));
    const std::size_t first = element % 2 == 0 ? 0 : 2;
    const std::uint64_t bits = layers::joined(words[first], words[first + 1]);
    const double unit =
        std::min((static_cast<double>(bits >> 11) + 0.5) * 0x1p-53, 1 - 0x1p-53);  // not 1
    core::store(target.dtype(), target.data(), element, bound * (2 * unit - 1));
  }
}

}  // namespace detail
}  // namespace qkv
