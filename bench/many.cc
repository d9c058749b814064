// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "groups.h"
#include "problem.h"
#include "session.h"

// The group "many": many small heads, as encoders and translators have. B heads of T queries and T
// keys are 64 channels wide.
namespace qkv::bench {
namespace {

constexpr Index kLengths[] = {16, 32, 64, 128, 512};

// The numbers of heads. Each is measured on one thread; numbers above 1 also on all threads.
constexpr Index kHeads[] = {1, 8, 64, 256};

void run_case(Session& session, Index T, Index heads, int threads, bool backward) {
  constexpr double kEffort = 0.25;
  Shape shape = square(session.length(T), 64);
  shape.B = heads;
  Problem problem = make_problem(shape);
  if (backward) make_backward(problem);
  const std::string name = fmt::format("many/B{}-T{}{}{}", heads, T, backward ? "-backward" : "",
                                       threads > 1 ? "-threads" : "");
  session.share_of_peak({name, std::nullopt, threads, kEffort}, problem);
}

}  // namespace

void run_many(Session& session) {
  for (const bool backward : {false, true}) {
    for (const Index T : kLengths) {
      for (const Index heads : kHeads) {
        // Other groups measure long heads.
        if (T == 512 && heads > 8) continue;
        // A quick run has only the shortest length and up to 8 heads, since the others run the same
        // code.
        if (session.is_quick() && (T != 16 || heads > 8)) continue;
        run_case(session, T, heads, 1, backward);
        if (heads > 1 && session.threads() > 1) {
          run_case(session, T, heads, session.threads(), backward);
        }
      }
    }
  }
}

}  // namespace qkv::bench
