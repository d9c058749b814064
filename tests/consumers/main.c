// SPDX-License-Identifier: Apache-2.0
// A program in C that uses the library: a call, its result, an error.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <qkv/c.h>

int main(void) {
  // Scores 0 and log 3: weights 1/4 and 3/4 of the values 0 and 4.
  double q[] = {1}, k[2] = {0}, v[] = {0, 4}, out[1];
  k[1] = log(3);
  qkv_inputs inputs;
  qkv_options options;
  qkv_outputs outputs;
  qkv_inputs_init(&inputs, sizeof inputs);
  qkv_options_init(&options, sizeof options);
  qkv_outputs_init(&outputs, sizeof outputs);
  options.score = QKV_DOT;
  qkv_tensor_init(&inputs.q, q, QKV_FLOAT64, 2, (const int64_t[]){1, 1});
  qkv_tensor_init(&inputs.k, k, QKV_FLOAT64, 2, (const int64_t[]){2, 1});
  qkv_tensor_init(&inputs.v, v, QKV_FLOAT64, 2, (const int64_t[]){2, 1});
  qkv_tensor_init(&outputs.out, out, QKV_FLOAT64, 2, (const int64_t[]){1, 1});
  const int right = qkv_attention(&inputs, &options, &outputs, NULL) == QKV_OK &&
                    fabs(out[0] - 3) < 1e-12 && strcmp(qkv_version(), QKV_VERSION) == 0;
  options.score = 99;
  const int refused = qkv_attention(&inputs, &options, &outputs, NULL) == QKV_INVALID_ARGUMENT;
  printf("qkv %s in C: %.12f, %s\n", qkv_version(), out[0], qkv_last_error());
  return right && refused ? 0 : 1;
}
