// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_CUDA_CALL_H_
#define QKV_CUDA_CALL_H_

#include <qkv/cuda.h>

#include "cuda/driver.h"

namespace qkv::cuda {

// attention() and attention_backward(), run with the given driver.
void run_attention(Driver& driver, const Inputs& inputs, const Options& options,
                   const Outputs& outputs, const Stream& stream);
void run_attention_backward(Driver& driver, const Inputs& inputs, const Options& options,
                            const Saved& saved, const OutputGradients& output_gradients,
                            const InputGradients& input_gradients, const Stream& stream);

}  // namespace qkv::cuda

#endif  // QKV_CUDA_CALL_H_
