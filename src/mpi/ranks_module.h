// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MPI_RANKS_MODULE_H_
#define QKV_MPI_RANKS_MODULE_H_

#include <qkv/ranks.h>

namespace qkv::mpi {

// The functions of the module qkv_ranks.so; its function qkv_ranks_module() returns them.
struct RanksModule {
  const char* version;          // of qkv; a program refuses versions other than its own
  Ranks* (*join)();             // initialises MPI and returns the ranks of MPI_COMM_WORLD
  void (*leave)();              // finalises MPI; every rank calls it before it ends
  void (*abort_all)(int code);  // ends all ranks at once
};

}  // namespace qkv::mpi

#endif  // QKV_MPI_RANKS_MODULE_H_
