// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>

#include "commands/shell/json_values.h"
#include "commands/view/view.h"

namespace {

using Json = nlohmann::ordered_json;

// A view of maps [L,H,Tq,Tk] without their first axes of size 1, down to rank `stored_rank`.
qkv::ConstView trimmed(const qkv::Tensor& maps, int stored_rank) {
  qkv::Dims shape;
  for (int axis = 0; axis < 4; ++axis) {
    if (maps.size(axis) > 1 || axis >= 4 - stored_rank || shape.rank() > 0) {
      shape.push_back(maps.size(axis));
    }
  }
  return qkv::reshape(maps.view(), shape);
}

}  // namespace

qkv::ConstView attn_of(const Shown& shown) { return trimmed(shown.weights, shown.stored_rank); }

std::vector<qkv::app::NamedView> arrays_of(const Shown& shown) {
  std::vector<qkv::app::NamedView> arrays{{shown.array, attn_of(shown)}};
  if (!shown.src.values.empty()) arrays.push_back({"src", &shown.src});
  const qkv::app::Strings& tgt = shown.tgt.values.empty() ? shown.tgt_in_files : shown.tgt;
  if (!tgt.values.empty()) arrays.push_back({"tgt", &tgt});
  if (shown.rows.given()) arrays.push_back({"rows", shown.rows.view()});
  if (!shown.axes.values.empty()) arrays.push_back({"axes", &shown.axes});
  if (!shown.line.values.empty()) arrays.push_back({"line", &shown.line});
  if (!shown.translation.values.empty()) arrays.push_back({"translation", &shown.translation});
  if (!shown.quantity.values.empty()) arrays.push_back({"quantity", &shown.quantity});
  if (shown.allowed.given()) arrays.push_back({"mask", trimmed(shown.allowed, shown.stored_rank)});
  return arrays;
}

Json json_of(const Shown& shown, const ViewOptions& options) {
  const Selection& part = shown.selection;
  Json json;
  json["file"] = options.input.name();
  if (options.is_difference()) json["minus"] = options.minus;
  json["example"] = part.example;
  json["layers"] = part.layers;
  json["heads"] = part.heads;
  json["queries"] = part.named;
  json["keys"] = part.keys;
  json["axes"] = {shown.picture.row_name, shown.picture.column_name};
  json["tgt"] = shown.tgt.values;
  json["src"] = shown.src.values;
  json["panels"] = Json::array();
  for (const qkv::app::Panel& panel : shown.picture.panels) {
    Json one;
    one["title"] = panel.title;
    one[shown.array == "attn" ? "weights" : shown.array] = json_data(panel.weights);
    if (panel.allowed.given()) one["allowed"] = json_data(panel.allowed);
    json["panels"].push_back(one);
  }
  json["notes"] = shown.picture.notes;
  return json;
}
