// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include <qkv/target.h>

#include "machine.h"
#include "report.h"

namespace qkv::bench {
namespace {

constexpr const char* kExplanation =
    R"(n: bursts; time: the median of a call; spread: (best - median) / best of the rates; clock: wall
time, or for one thread CPU time if this spread less or wall time is over 1 % longer. A share of the
peak is relative to the best of at least 20 bursts of the peak, which alternated with the call; it
is noisy if these spread more than 3 %. Ratios, and shares of a read, are medians over bursts; a
share of a read is noisy if the median's standard error is more than 1 %.
(i,j,u): each unit of each additive score, B H Tq Tk U in a call, forward or backward.)";

std::string bytes_text(double bytes) {
  if (bytes < 0x1p10) return fmt::format("{:.0f} B", bytes);
  if (bytes < 0x1p20) return fmt::format("{:.0f} KiB", bytes / 0x1p10);
  return fmt::format("{:.1f} MiB", bytes / 0x1p20);
}

std::string figure_text(const Row& row) {
  switch (verdict_of(row)) {
    case Verdict::kWrong:
      return "WRONG: " + row.fault;
    case Verdict::kNoisy:
      return fmt::format("noisy ({:.1f} %)",
                         100 * (row.figure_spread > 0 ? row.figure_spread : row.base.spread));
    case Verdict::kNone:
    case Verdict::kMet:
    case Verdict::kMissed:
      break;
  }
  if (!row.value) return "no peak known";
  const Form form = form_of(row.figure);
  return fmt::format("{} {}", form.text(*row.value), form.of);
}

std::string target_text(const Row& row) {
  if (!row.target) return "";
  const Form form = form_of(row.figure);
  std::string text = (form.aim == Aim::kAtLeast ? ">= " : "<= ") + form.text(*row.target);
  const Verdict verdict = verdict_of(row);
  if (verdict == Verdict::kMet) text += " met";
  if (verdict == Verdict::kMissed) text += " MISSED";
  return text;
}

std::string rate_text(const Row& row) {
  if (row.time.median <= 0) return "";
  return fmt::format("{:.1f} {}", row.work / row.time.median * 1e-9, form_of(row.figure).rate_unit);
}

std::string line_of(const Row& row, std::size_t width) {
  const bool timed = row.time.n > 0;
  std::string line =
      fmt::format("{:<{}}  {:>4}  {:>9}  {:>6}  {:<4}  {:>13}  {:>9}  {:<38}  {:<15}", row.name,
                  width, row.time.n, timed ? seconds_text(row.time.median) : "",
                  timed ? fmt::format("{:.1f} %", 100 * row.time.spread) : "",
                  row.clock == Clock::kCpu ? "cpu" : "wall", rate_text(row),
                  bytes_text(static_cast<double>(row.scratch)), figure_text(row), target_text(row));
  line.erase(line.find_last_not_of(' ') + 1);
  line += "\n";
  if (!row.note.empty()) line += "  " + row.note + "\n";
  for (const PeerTime& peer : row.peers) {
    line +=
        fmt::format("  {}{}{}: {}, {:.2f}x our time\n", peer.name, peer.form.empty() ? "" : ", ",
                    peer.form, seconds_text(peer.median), peer.ratio);
  }
  return line;
}

std::string facts_text(const Facts& facts) {
  return fmt::format("{}\n{}, {} thread{}, target {}, {}{}{}\n", facts.cpu, facts.date,
                     facts.threads, facts.threads == 1 ? "" : "s", facts.target, facts.compiler,
                     facts.commit.empty() ? "" : ", commit " + facts.commit,
                     facts.size == Size::kQuick ? ", QUICK: too short to measure speed" : "");
}

}  // namespace

Facts facts_of(const std::string& command, const Session& session) {
  Facts facts;
  facts.command = command;
  facts.date = date_now();
  facts.cpu = cpu_name();
  facts.compiler = compiler_name();
  facts.target = cpu_target();
  facts.threads = session.threads();
  facts.size = session.settings().size;
  return facts;
}

std::string report_text(const Facts& facts, std::span<const Row> rows) {
  std::size_t width = 0;
  for (const Row& row : rows) width = std::max(width, row.name.size());
  std::string text = facts_text(facts) + "\n";
  text += fmt::format("{:<{}}  {:>4}  {:>9}  {:>6}  {:<4}  {:>13}  {:>9}  {:<38}  {}\n", "row",
                      width, "n", "time", "spread", "clock", "rate", "scratch", "figure", "target");
  for (const Row& row : rows) text += line_of(row, width);
  return text + "\n" + kExplanation + "\n";
}

int wrong_rows(std::span<const Row> rows) {
  return static_cast<int>(
      std::ranges::count(rows, Verdict::kWrong, [](const Row& row) { return verdict_of(row); }));
}

}  // namespace qkv::bench
