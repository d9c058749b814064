// SPDX-License-Identifier: Apache-2.0
#include "files/json_tree.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>
#include <utility>

#include <fmt/format.h>

#include <qkv/app/utf8.h>

#include "files/file.h"
#include "files/text_file.h"

namespace qkv::files {

JsonTree json_tree(std::string_view text, const JsonBounds& most, const JsonRefuse& refuse) {
  using Event = Json::parse_event_t;
  std::istringstream in{std::string(text)};
  const auto position = [&]() -> Index {
    return in.rdbuf()->pubseekoff(0, std::ios::cur, std::ios::in);
  };
  const auto not_json = [&](Index byte) {
    const std::string_view rest =
        text.substr(std::min(static_cast<std::size_t>(byte), text.size()));
    refuse(byte,
           rest.empty() ? std::string(kEndOfJson) : "expected JSON, got " + app::quoted(rest, 20));
  };
  const auto too_much = [&](const std::string& got) {
    refuse(position(), fmt::format("expected {}, got {}", most.what, got));
  };
  // nlohmann's parser would take a NUL byte for the end of the text.
  if (const auto zero = text.find('\0'); zero != text.npos) not_json(static_cast<Index>(zero));

  JsonTree tree;
  std::unordered_set<std::string> names;        // member names of the outermost object
  std::unordered_set<std::string> inner_names;  // of the object in the current member
  std::size_t values = 0;
  const auto check = [&](int depth, Event event, Json& parsed) {
    const bool opens = event == Event::object_start || event == Event::array_start;
    const bool inner_object = depth > 0 && (depth > 1 || tree.members.empty());
    if (opens && (depth == most.depth || (event == Event::object_start && inner_object))) {
      too_much("deeper JSON");
    }
    if ((opens || event == Event::value) && ++values > most.values) {
      too_much(fmt::format("more than {} values", most.values));
    }
    if (event == Event::key) {
      const auto name = parsed.get<std::string>();
      if (!(depth == 1 ? names : inner_names).insert(name).second) {
        refuse(position(), fmt::format("expected distinct names, got {} twice", app::quoted(name)));
      }
      if (depth > 1) {
        tree.members.back().names.push_back(name);
      } else {
        tree.members.push_back({name, position(), {}, {}});
        inner_names.clear();
      }
    } else if (!opens && depth == 1 && !tree.members.empty()) {
      // The value is moved out of the parser's tree: at the end of each object, the parser scans
      // everything that the enclosing object keeps.
      tree.members.back().value = std::move(parsed);
      return false;
    }
    return true;
  };
  try {
    tree.root = Json::parse(in, check);
  } catch (const Json::parse_error& error) {
    not_json(std::max<Index>(static_cast<Index>(error.byte), 1) - 1);
  } catch (const Json::out_of_range&) {
    refuse(position(), "expected JSON, got a number out of range");
  }
  return tree;
}

JsonTree read_json_tree(const std::string& path, const JsonBounds& most) {
  std::string text;
  const auto refuse = [&](Index byte, const std::string& detail) {
    const auto end = text.begin() + std::min(byte, static_cast<Index>(text.size()));
    throw app::InputError::at_line(path, 1 + std::count(text.begin(), end, '\n'), detail);
  };
  const auto refuse_truncated = [&](Index byte, const std::string& detail) {
    const bool is_cut =
        !text.empty() && byte >= static_cast<Index>(text.size()) && detail == kEndOfJson;
    refuse(byte,
           is_cut ? fmt::format("{}{} after {} bytes", kTruncated, detail, text.size()) : detail);
  };
  app::for_each_block(path, [&](std::string_view block) {
    text += block;
    if (text.size() <= most.bytes) return;
    refuse(0, fmt::format("expected {}, got more than {} bytes", most.what, most.bytes));
  });
  return json_tree(text, most, refuse_truncated);
}

}  // namespace qkv::files
