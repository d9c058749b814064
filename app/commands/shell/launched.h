// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_COMMANDS_SHELL_LAUNCHED_H_
#define QKV_COMMANDS_SHELL_LAUNCHED_H_

#include <string>

#include <qkv/ranks.h>

// The processes that a launcher of MPI (mpirun, srun) started together, of which this is one.

// The rank of this process and the number of processes, by the launcher's environment variables: 0
// of 1 if there is no launcher, or QKV_RANKS is 1.
struct Launched {
  int rank = 0;
  int count = 1;
};
Launched launched();

// Joins the other processes by MPI: waits until all have come. Null if this process is alone.
// Throws NotAvailable if this build has no MPI, or another MPI than the launcher's.
qkv::Ranks* join_ranks();
// Whether this process has joined others and is not rank 0.
bool is_follower();
// Marks the error that is about to be thrown as one of which the other ranks do not know.
void lone_error();
// The prefix of an error's message in `train`, "rank 2: ". It is empty before join_ranks(), and on
// rank 0 unless lone_error() was called.
std::string rank_in_errors();
// Called before the program exits with `code`. Leaves the other processes or, after lone_error(),
// ends them.
void leave_ranks(int code);

#endif  // QKV_COMMANDS_SHELL_LAUNCHED_H_
