// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands/shell/json_values.h"
#include "commands/shell/terminal.h"
#include "commands/words/words.h"

namespace {

using qkv::Index;
using qkv::app::NamedView;
using qkv::app::Strings;

std::string_view form_of(const WordsOptions& options) {
  if (options.heads == 0) return "identity";
  return kForms[static_cast<std::size_t>(options.form)].name;
}

// ---- arrays ---------------------------------------------------------------------------------

// The texts among the arrays of a file. The views that arrays() returns point into this struct.
struct Texts {
  Strings tokens{};
  Strings spellings{};
  Strings source{};
  Strings score{};
  Strings form{};
  Strings score_mod{};
  Strings mask_mod{};
};

Strings one(std::string_view text) { return {{}, {std::string(text)}}; }

Texts texts_of(const WordInput& input, const WordsOptions& options,
               const Expressions& expressions) {
  const auto words = static_cast<Index>(input.tokens.size());
  return {{{words}, input.tokens},     {{words}, input.spellings}, one(input.source),
          one(name_of(options.score)), one(form_of(options)),      one(expressions.score_text),
          one(expressions.mask_text)};
}

std::vector<NamedView> arrays(const WordAttention& attention, const WordInput& input,
                              const WordsOptions& options, const Expressions& expressions,
                              const Texts& texts) {
  const qkv::ConstView scale(&attention.scale, qkv::Dims());
  const qkv::ConstView seed(&options.seed, qkv::Dims());
  std::vector<NamedView> arrays{{"attn", attention.weights.view()}};
  if (attention.unmasked.given()) arrays.push_back({"mask", attention.unmasked.view()});
  arrays.insert(arrays.end(), {{"src", &texts.tokens},
                               {"tgt", &texts.tokens},
                               {"tokens", &texts.tokens},
                               {"words", &texts.spellings},
                               {"vectors", &texts.source},
                               {"x", input.x.view()},
                               {"form", &texts.form},
                               {"seed", seed},
                               {"score", &texts.score},
                               {"scale", scale}});
  for (const ExpressionArray& array : expressions.arrays) {
    arrays.push_back({"with." + array.name, array.values});
  }
  if (!expressions.mods.empty()) arrays.push_back({"score_mod", &texts.score_mod});
  if (!expressions.masks.empty()) arrays.push_back({"mask_mod", &texts.mask_mod});
  for (const Parameter& p : attention.parameters) {
    arrays.push_back({"params." + p.name, p.value.view()});
  }
  arrays.insert(arrays.end(), {{"q", attention.q.view()},
                               {"k", attention.k.view()},
                               {"v", attention.v.view()},
                               {"scores", attention.scores.view()},
                               {"weights", attention.weights.view()},
                               {"lse", attention.lse.view()},
                               {"out", attention.out.view()}});
  return arrays;
}

// ---- JSON -----------------------------------------------------------------------------------

// For each word, and with heads for each head, the other word that it attends to most.
nlohmann::ordered_json links_of(const WordAttention& attention) {
  const qkv::ConstView keys = attention.top_keys.view();
  const auto* key = keys.as<std::int64_t>();
  const auto* weight = attention.top_weights.view().as<double>();
  const Index words = keys.size(-2);
  const Index count = keys.size(-1);
  auto links = nlohmann::ordered_json::array();
  for (Index row = 0; row < keys.element_count() / count; ++row) {
    for (Index n = row * count; n < (row + 1) * count; ++n) {
      if (key[n] == row % words || key[n] < 0) continue;
      nlohmann::ordered_json link;
      if (keys.rank() == 3) link["head"] = row / words;
      link["from"] = row % words;
      link["to"] = key[n];
      link["weight"] = json_number(weight[n]);
      links.push_back(std::move(link));
      break;
    }
  }
  return links;
}

nlohmann::ordered_json report_json(const WordInput& input, const WordAttention& attention,
                                   const WordsOptions& options, const Expressions& expressions) {
  nlohmann::ordered_json json;
  json["tokens"] = input.tokens;
  json["words"] = input.spellings;
  json["vectors"] = input.source;
  json["width"] = input.x.size(1);
  json["score"] = name_of(options.score);
  json["scale"] = attention.scale;
  const std::string parameters = parameters_text(attention, options);
  if (!parameters.empty()) json["parameters"] = parameters;
  json.update(settings_of(expressions));
  json["form"] = form_of(options);
  json["seed"] = options.seed;
  json["strongest_other"] = links_of(attention);
  json["weights"] = json_array(attention.weights.view());
  return json;
}

// ---- pictures -------------------------------------------------------------------------------

qkv::app::Picture picture(const WordInput& input, const WordAttention& attention,
                          Index most = std::numeric_limits<Index>::max()) {
  qkv::app::Picture picture;
  picture.queries = picture.keys = input.tokens;
  const qkv::ConstView weights = attention.weights.view();
  const qkv::ConstView unmasked = attention.unmasked.view();
  if (weights.rank() == 2) {
    picture.panels.push_back({"", weights, unmasked});
    return picture;
  }
  const Index shown = std::min(weights.size(0), most);
  const auto map_of = [](const qkv::ConstView& all, Index head) -> qkv::ConstView {
    if (!all.given()) return {};
    return qkv::reshape(qkv::slice(all, 0, head, head + 1), {all.size(1), all.size(2)});
  };
  for (Index h = 0; h < shown; ++h) {
    picture.panels.push_back({fmt::format("head {}", h), map_of(weights, h), map_of(unmasked, h)});
  }
  if (shown < weights.size(0)) {
    picture.notes.push_back(
        fmt::format("the first {} of {} heads; -o FILE.npz, then qkv view FILE.npz --heads LIST "
                    "shows others",
                    shown, weights.size(0)));
  }
  return picture;
}

// The picture for a file, with notes on where the parameters come from and how the scores were
// changed; on a terminal the report has these facts.
qkv::app::Picture picture_of_file(const WordInput& input, const WordAttention& attention,
                                  const WordsOptions& options, const Expressions& expressions) {
  qkv::app::Picture file = picture(input, attention);
  const std::string parameters = parameters_text(attention, options);
  if (!parameters.empty()) file.notes.push_back(parameters);
  if (expressions.given()) file.notes.push_back(settings_text(settings_of(expressions)));
  return file;
}

std::string screen(const WordInput& input, const WordAttention& attention,
                   const WordsOptions& options, const Expressions& expressions,
                   const Common& common) {
  WordScreen screen{.columns = table_columns()};
  if (on_terminal() && std::ssize(input.tokens) <= kLongestMap) {
    screen.map =
        qkv::app::draw_terminal(picture(input, attention, kMostMaps), terminal_style(common));
  }
  return word_report(input, attention, options, expressions, screen);
}

}  // namespace

Results word_forms(const WordInput& input, const WordAttention& attention,
                   const WordsOptions& options, const Expressions& expressions,
                   const Common& common) {
  Results forms;
  const auto texts = std::make_shared<Texts>();
  forms.arrays = [&, texts] {
    *texts = texts_of(input, options, expressions);
    return arrays(attention, input, options, expressions, *texts);
  };
  forms.array = [&] { return attention.weights.view(); };
  forms.picture = [&] { return picture_of_file(input, attention, options, expressions); };
  forms.text = [&] { return word_report(input, attention, options, expressions); };
  forms.screen = [&] { return screen(input, attention, options, expressions, common); };
  forms.json = [&] { return report_json(input, attention, options, expressions); };
  return forms;
}
