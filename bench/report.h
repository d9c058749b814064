// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_REPORT_H_
#define QKV_BENCH_REPORT_H_

#include <span>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "row.h"
#include "session.h"

namespace qkv::bench {

// The facts of a run: its command, the code and the machine.
struct Facts {
  std::string command{};
  std::string commit{};  // the code's commit; "" if it is not known
  std::string date{};
  std::string cpu{};
  std::string compiler{};
  std::string target{};  // the CPU target in use
  int threads = 1;
  Size size = Size::kFull;
};
// The facts of this machine and build, without a commit.
Facts facts_of(const std::string& command, const Session& session);

// The facts, a table of the rows, and an explanation of its columns.
std::string report_text(const Facts& facts, std::span<const Row> rows);

// An object of the facts, and "rows": an object of the rows by name, with their numbers. Times are
// in seconds and sizes in bytes.
nlohmann::ordered_json report_json(const Facts& facts, std::span<const Row> rows);

// The number of rows whose result is wrong.
int wrong_rows(std::span<const Row> rows);

}  // namespace qkv::bench

#endif  // QKV_BENCH_REPORT_H_
