// SPDX-License-Identifier: Apache-2.0
#include <qkv/mpi.h>

#include "mpi/mpi_ranks.h"

namespace qkv::mpi {

std::unique_ptr<Ranks> ranks_of(MPI_Comm comm) { return std::make_unique<MpiRanks>(comm); }

void attention(MPI_Comm comm, const Inputs& inputs, const Options& options, const Outputs& outputs,
               Sharding sharding) {
  MpiRanks ranks(comm);
  ring_attention(inputs, options, outputs, ranks, sharding);
}

void attention_backward(MPI_Comm comm, const Inputs& inputs, const Options& options,
                        const Saved& saved, const OutputGradients& output_gradients,
                        const InputGradients& input_gradients, Sharding sharding) {
  MpiRanks ranks(comm);
  ring_attention_backward(inputs, options, saved, output_gradients, input_gradients, ranks,
                          sharding);
}

}  // namespace qkv::mpi
