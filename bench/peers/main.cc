// SPDX-License-Identifier: Apache-2.0
// The program qkv_bench: measures the rows of `qkv bench` beside oneDNN and, for additive scores,
// beside the broadcast formula.
#include <exception>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "../groups.h"
#include "../report.h"
#include "broadcast.h"
#include "onednn.h"

namespace {

struct Options {
  std::vector<std::string> groups{};
  std::string commit{};
  std::string file{};
  double seconds = 1;
  int threads = 0;
  bool quick = false;
  bool json = false;
};

void add_options(CLI::App& program, Options& options) {
  program.add_option("GROUP", options.groups, "what to measure: the groups of `qkv bench`");
  program.add_option("--commit", options.commit, "commit of the results, to be recorded");
  program.add_option("-o", options.file, "a .json file");
  program.add_option("--seconds", options.seconds, "how long each row is measured (default 1)")
      ->check(CLI::PositiveNumber);
  program
      .add_option("--threads", options.threads,
                  "threads of the rows that use several (default: all processors)")
      ->check(CLI::Range(0, 4096));
  program.add_flag("--quick", options.quick, "short lengths: shows that everything runs");
  program.add_flag("--json", options.json, "the report on standard output as JSON");
}

std::vector<qkv::bench::Peer> all_peers() {
  std::vector<qkv::bench::Peer> peers = {qkv::bench::onednn_peer()};
#ifdef QKV_BENCH_SLEEF
  peers.push_back(qkv::bench::broadcast_peer());
#endif
  return peers;
}

void write_file(const std::string& name, const std::string& text) {
  std::ofstream file(name, std::ios::binary);
  if (!(file << text).flush()) throw std::runtime_error(name + ": cannot be written");
}

int run(const Options& options, const std::string& command) {
  const std::vector<qkv::bench::Peer> peers = all_peers();
  qkv::bench::Settings settings;
  settings.size = options.quick ? qkv::bench::Size::kQuick : qkv::bench::Size::kFull;
  settings.seconds = options.seconds;
  settings.threads = options.threads;
  settings.peers = peers;
  settings.started = [](std::string_view row) { std::cerr << "qkv_bench: " << row << "\n"; };
  qkv::bench::Session session(settings);
  qkv::bench::Facts facts = facts_of(command, session);
  facts.commit = options.commit;
  for (const qkv::bench::Group& group : qkv::bench::chosen_groups(options.groups))
    group.run(session);
  const std::string json = report_json(facts, session.rows()).dump(1) + "\n";
  if (!options.file.empty()) write_file(options.file, json);
  std::cout << (options.json ? json : report_text(facts, session.rows()));
  return wrong_rows(session.rows()) > 0 ? 1 : 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App program("Attention against other libraries.", "qkv_bench");
  Options options;
  add_options(program, options);
  CLI11_PARSE(program, argc, argv);
  std::string command = "qkv_bench";
  for (int n = 1; n < argc; ++n) command += std::string(" ") + argv[n];
  try {
    return run(options, command);
  } catch (const std::exception& error) {
    std::cerr << "qkv_bench: " << error.what() << "\n";
    return 1;
  }
}
