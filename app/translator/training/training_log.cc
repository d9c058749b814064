// SPDX-License-Identifier: Apache-2.0
#include "translator/training/training_log.h"

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "files/settings.h"

namespace qkv::app {
namespace {

// A JSON object on one line, without the line feed.
std::string object(const Settings& members) {
  std::string text = settings_line(members);
  text.pop_back();
  return text;
}

}  // namespace

std::string text_of(const LogLine& line) {
  Settings members{{"epoch", line.spent.epochs}, {"update", line.spent.updates}};
  if (!line.end.empty()) members.push_back({"end", line.end});
  if (line.loss) members.push_back({"loss", *line.loss});
  members.push_back({"learning_rate", line.learning_rate});
  members.push_back({"gradient_norm", line.gradient_norm});
  if (line.clipped) members.push_back({"clipped", *line.clipped});
  members.push_back({"seconds", line.spent.seconds});
  if (line.tokens_per_second) members.push_back({"tokens_per_second", *line.tokens_per_second});
  if (!line.validation) return object(members) + "\n";
  const ValidationScore& score = line.validation->score;
  members.push_back({"valid_loss", score.loss});
  members.push_back({"perplexity", std::exp(score.loss)});
  members.push_back({"bleu", score.bleu});
  members.push_back({"exact", score.exact});
  members.push_back({"translated", score.translated});
  members.push_back({"best", line.validation->is_best});
  std::string text = object(members);
  text.pop_back();  // the closing brace, since the sample, a nested object, follows
  return text +
         fmt::format(", \"sample\": {}}}\n", object({{"source", score.sample.source},
                                                     {"translation", score.sample.translation},
                                                     {"reference", score.sample.reference}}));
}

}  // namespace qkv::app
