// SPDX-License-Identifier: Apache-2.0
// Attention from C: a forward and a backward pass, and the message of a wrong call.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <qkv/c.h>

enum { B = 1, H = 2, T = 3, D = 4, ELEMENTS = B * H * T * D, ROWS = B * H * T };

static void check(qkv_status status) {
  if (status == QKV_OK) return;
  fprintf(stderr, "%s: %s\n", qkv_status_name(status), qkv_last_error());
  exit(1);
}

int main(void) {
  const int64_t shape[] = {B, H, T, D};
  float x[ELEMENTS], out[ELEMENTS], lse[ROWS], dout[ELEMENTS], dq[ELEMENTS];
  for (int n = 0; n < ELEMENTS; ++n) {
    x[n] = (float)(n % 5);
    dout[n] = 1;
  }

  qkv_inputs inputs;
  check(qkv_inputs_init(&inputs, sizeof inputs));
  check(qkv_tensor_init(&inputs.q, x, QKV_FLOAT32, 4, shape));
  inputs.k = inputs.v = inputs.q;

  qkv_options options;
  check(qkv_options_init(&options, sizeof options));
  options.causal = 1;

  qkv_outputs outputs;
  check(qkv_outputs_init(&outputs, sizeof outputs));
  check(qkv_tensor_init(&outputs.out, out, QKV_FLOAT32, 4, shape));
  check(qkv_tensor_init(&outputs.lse, lse, QKV_FLOAT32, 3, shape));

  qkv_context* context;
  check(qkv_context_create(2, &context));  // two threads
  check(qkv_attention(&inputs, &options, &outputs, context));
  printf("out[4] = %.4f, lse[1] = %.4f\n", out[4], lse[1]);

  qkv_saved saved;
  qkv_output_gradients from;
  qkv_input_gradients to;
  check(qkv_saved_init(&saved, sizeof saved));
  check(qkv_output_gradients_init(&from, sizeof from));
  check(qkv_input_gradients_init(&to, sizeof to));
  saved.out = outputs.out;
  saved.lse = outputs.lse;
  check(qkv_tensor_init(&from.out, dout, QKV_FLOAT32, 4, shape));
  check(qkv_tensor_init(&to.q, dq, QKV_FLOAT32, 4, shape));
  check(qkv_attention_backward(&inputs, &options, &saved, &from, &to, context));
  printf("dq[4] = %.4f\n", dq[4]);

  outputs.out.sizes[3] = D - 1;
  const qkv_status status = qkv_attention(&inputs, &options, &outputs, context);
  printf("%s: %s\n", qkv_status_name(status), qkv_last_error());
  qkv_context_destroy(context);
  return 0;
}
