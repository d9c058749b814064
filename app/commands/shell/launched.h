// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_LAUNCHED_H_
#define QKV_COMMANDS_SHELL_LAUNCHED_H_

#include <string>

#include <qkv/ranks.h>

// The processes that a launcher of MPI (mpirun, srun) started together, of which this is one.

// This process among them, by the launcher's environment variables; alone if there is no launcher,
// or QKV_RANKS is 1.
struct Launched {
  int rank = 0;
  int count = 1;
};
Launched launched();

// Joins the others by MPI: waits until all have come. Null if this process is alone. Throws
// NotAvailable if this build has no MPI, or another one than the launcher.
qkv::Ranks* join_ranks();
// Whether this process has joined others, of which it is not the first.
bool is_follower();
// Marks the error that is about to be thrown as one of which the other ranks do not know.
void lone_error();
// The beginning of an error's message in `train`: "rank 2: "; nothing on the first rank, unless the
// others do not know of the error.
std::string rank_in_errors();
// Called before the program exits with `code`: leaves the others, or ends them after lone_error().
void leave_ranks(int code);

#endif  // QKV_COMMANDS_SHELL_LAUNCHED_H_
