// SPDX-License-Identifier: Apache-2.0
#ifndef QKV_BENCH_REPORT_H_
#define QKV_BENCH_REPORT_H_

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "row.h"
#include "session.h"

namespace qkv::bench {

// What was run, and on which machine.
struct Facts {
  std::string command{};
  std::string commit{};  // "": not known
  std::string date{};
  std::string cpu{};
  std::string compiler{};
  std::string target{};  // of the CPU, the one in use
  int threads = 1;
  Size size = Size::kFull;
};
Facts facts_of(const std::string& command, const Session& session);

// A table of the rows, preceded by an explanation of the columns.
std::string report_text(const Facts& facts, std::span<const Row> rows);

// The facts, and "rows": by name, each with its numbers; times in seconds, sizes in bytes.
nlohmann::ordered_json report_json(const Facts& facts, std::span<const Row> rows);

int wrong_rows(std::span<const Row> rows);

}  // namespace qkv::bench

#endif  // QKV_BENCH_REPORT_H_
