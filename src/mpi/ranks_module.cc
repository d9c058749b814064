// SPDX-License-Identifier: Apache-2.0
// The module that the program `qkv` loads if MPI has started the program as several processes. The
// program itself is linked without MPI.
#include "mpi/ranks_module.h"

#include <optional>

#include <qkv/version.h>

#include "mpi/mpi_ranks.h"

namespace {

std::optional<qkv::mpi::MpiRanks> ranks;

qkv::Ranks* join() {
  int provided = 0;
  // Several threads compute, but only one thread calls MPI.
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  // An error of MPI ends all ranks, since other ranks would wait for the rank that failed.
  return &ranks.emplace(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

void leave() {
  ranks.reset();
  MPI_Finalize();
}

void abort_all(int code) { MPI_Abort(MPI_COMM_WORLD, code); }

}  // namespace

extern "C" __attribute__((visibility("default"))) const qkv::mpi::RanksModule* qkv_ranks_module() {
  static const qkv::mpi::RanksModule module{QKV_VERSION, &join, &leave, &abort_all};
  return &module;
}
