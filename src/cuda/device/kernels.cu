// SPDX-License-Identifier: Apache-2.0

// Writes `value` to `to`: shows that the kernels of a build run on a device.
extern "C" __global__ void qkv_probe(unsigned* to, unsigned value) { *to = value; }
