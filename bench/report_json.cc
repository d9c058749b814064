// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "report.h"

namespace qkv::bench {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kNone:
      return "none";
    case Verdict::kMet:
      return "met";
    case Verdict::kMissed:
      return "missed";
    case Verdict::kNoisy:
      return "noisy";
    case Verdict::kWrong:
      return "wrong";
  }
  return "";
}

Json optional(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json base_json(const Row& row) {
  Json json;
  json["n"] = row.base.n;
  json["best"] = row.base.best;
  json["median"] = row.base.median;
  json["spread"] = row.base.spread;
  json["best_rate"] = row.base.best > 0 ? row.base_work / row.base.best : 0;
  return json;
}

Json row_json(const Row& row) {
  Json json;
  json["path"] = row.path;
  json["threads"] = row.threads;
  json["verdict"] = name_of(verdict_of(row));
  json[form_of(row.figure).key] = optional(row.value);
  json["target"] = optional(row.target);
  json["n"] = row.time.n;
  json["median"] = row.time.median;
  json["best"] = row.time.best;
  json["spread"] = row.time.spread;
  json["clock"] = row.clock == Clock::kCpu ? "cpu" : "wall";
  json["work"] = row.work;
  json["rate"] = row.time.median > 0 ? row.work / row.time.median : 0;
  json["scratch"] = row.scratch;
  json["matrix"] = row.matrix;
  if (row.base.n > 0) json["base"] = base_json(row);
  if (row.figure_spread > 0) json["figure_spread"] = row.figure_spread;
  for (const PeerTime& peer : row.peers) {
    json["peer"] = peer.name;
    if (peer.form.empty()) {
      json["peer_median"] = peer.median;
      json["peer_ratio"] = peer.ratio;
      json["peer_spread"] = peer.spread;
    } else {
      json["peers"][peer.form] = {
          {"median", peer.median}, {"ratio", peer.ratio}, {"spread", peer.spread}};
    }
  }
  if (!row.note.empty()) json["note"] = row.note;
  if (!row.fault.empty()) json["fault"] = row.fault;
  return json;
}

}  // namespace

Json report_json(const Facts& facts, std::span<const Row> rows) {
  Json json;
  json["command"] = facts.command;
  json["commit"] = facts.commit.empty() ? Json() : Json(facts.commit);
  json["date"] = facts.date;
  json["cpu"] = facts.cpu;
  json["compiler"] = facts.compiler;
  json["cpu_target"] = facts.target;
  json["threads"] = facts.threads;
  json["quick"] = facts.size == Size::kQuick;
  json["rows"] = Json::object();
  for (const Row& row : rows) json["rows"][row.name] = row_json(row);
  return json;
}

}  // namespace qkv::bench
