// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_EXPRESSIONS_INSTANCES_H_
#define QKV_EXPRESSIONS_INSTANCES_H_

#include <qkv/instances.h>

#include "expressions/evaluation.h"

namespace qkv::expressions {

// The loops of an evaluation, compiled for a CPU target.
template <class T>
struct Instance {
  void (*run)(Evaluation<T>& evaluation, const RowPlace& place, Index count, const T* scores,
              T* result);
  void (*go_back)(Evaluation<T>& evaluation, Index count);
};

// The instance for a target; on CPUs other than x86-64, always that of the baseline.
template <class T>
const Instance<T>& instance_for(detail::InstanceTarget target);

}  // namespace qkv::expressions

#endif  // QKV_EXPRESSIONS_INSTANCES_H_
