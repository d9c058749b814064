// SPDX-License-Identifier: Apache-2.0
// The group "backward": gradients of one head, compared with the multiply-add peak on one thread
// and on all; and the cost of options in the backward pass.
#include "groups.h"

namespace qkv::bench {
namespace {

struct BackwardCase {
  Index T;
  Index D;
  std::optional<double> target;
};

constexpr double kOneThreadTarget = 0.88;
constexpr BackwardCase kOneThread[] = {
    {512, 64, std::nullopt},      {1024, 64, kOneThreadTarget},  {1024, 128, kOneThreadTarget},
    {2048, 64, kOneThreadTarget}, {2048, 128, kOneThreadTarget}, {4096, 64, kOneThreadTarget},
};
constexpr double kThreadsTarget = 0.86;
constexpr BackwardCase kSeveralThreads[] = {
    {1024, 64, kThreadsTarget}, {2048, 64, kThreadsTarget}, {2048, 128, kThreadsTarget}};

void share_backward(Session& session, const Wanted& wanted, const Shape& shape,
                    const Options& options) {
  Problem problem = make_problem(shape);
  problem.options = options;
  make_backward(problem);
  session.share_of_peak(wanted, problem);
}

}  // namespace

void run_backward(Session& session) {
  for (const BackwardCase& one : kOneThread) {
    const Shape shape = square(session.length(one.T), one.D);
    share_backward(session, {"backward/" + name_of(shape), one.target}, shape, {});
  }
  const Shape causal = square(session.length(2048), 64);
  share_backward(session, {"backward/" + name_of(causal) + "-causal"}, causal,
                 {.masks = {Causal{}}});
  for (const Index D : {64, 128}) {
    constexpr double kShare = 0.6;  // of the peak of BF16 products, or else of float32
    Shape narrow = square(session.length(2048), D);
    narrow.dtype = DType::kBFloat16;
    share_backward(session, {"backward/" + name_of(narrow) + "-bfloat16", kShare}, narrow, {});
  }
  Shape doubles = causal;
  doubles.dtype = DType::kFloat64;
  share_backward(session, {"backward/" + name_of(doubles) + "-float64"}, doubles, {});
  if (session.threads() > 1) {
    for (const BackwardCase& one : kSeveralThreads) {
      const Shape shape = square(session.length(one.T), one.D);
      share_backward(session,
                     {"backward/" + name_of(shape) + "-threads", one.target, session.threads()},
                     shape, {});
    }
  }
  run_backward_options(session);
}

}  // namespace qkv::bench
