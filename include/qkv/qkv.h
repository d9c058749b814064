// SPDX-License-Identifier: Apache-2.0
// The library `qkv` in one include, except show.h, ring.h, ranks.h, mpi.h and c.h.
#ifndef QKV_QKV_H_
#define QKV_QKV_H_

#include <qkv/additive_memory.h>
#include <qkv/attention.h>
#include <qkv/context.h>
#include <qkv/cuda.h>
#include <qkv/dtype.h>
#include <qkv/error.h>
#include <qkv/expression.h>
#include <qkv/kv_cache.h>
#include <qkv/layers.h>
#include <qkv/mods.h>
#include <qkv/options.h>
#include <qkv/outputs.h>
#include <qkv/q8.h>
#include <qkv/soft_cap.h>
#include <qkv/softmax.h>
#include <qkv/target.h>
#include <qkv/tensor.h>
#include <qkv/version.h>
#include <qkv/view.h>

#endif  // QKV_QKV_H_
