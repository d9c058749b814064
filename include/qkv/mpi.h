// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_MPI_H_
#define QKV_MPI_H_

#include <memory>

#include <mpi.h>

#include <qkv/attention.h>
#include <qkv/export.h>
#include <qkv/ranks.h>
#include <qkv/ring.h>

// Attention of one sequence over the processes of an MPI communicator, as in <qkv/ring.h>.
// Linked with qkv::mpi (CMake: find_package(qkv COMPONENTS mpi)), which needs MPI 3 or newer. One
// thread of a process calls MPI: MPI_THREAD_FUNNELED suffices.
namespace qkv::mpi {

// Returns the processes of a communicator as ranks. The object uses a duplicate of `comm` and must
// be destroyed before MPI_Finalize. Collective. Throws std::runtime_error if MPI reports an error.
QKV_API std::unique_ptr<Ranks> ranks_of(MPI_Comm comm);

// ring_attention() over a communicator. Many calls are faster with one object of ranks_of().
QKV_API void attention(MPI_Comm comm, const Inputs& inputs, const Options& options,
                       const Outputs& outputs, Sharding sharding = kContiguous);
// ring_attention_backward() over a communicator.
QKV_API void attention_backward(MPI_Comm comm, const Inputs& inputs, const Options& options,
                                const Saved& saved, const OutputGradients& output_gradients,
                                const InputGradients& input_gradients,
                                Sharding sharding = kContiguous);

}  // namespace qkv::mpi

#endif  // QKV_MPI_H_
