// SPDX-License-Identifier: Apache-2.0
#include "commands/train/score_report.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "commands/shell/console.h"
#include "commands/shell/json_values.h"

namespace {

using Json = nlohmann::ordered_json;
using qkv::app::CorpusScore;
using qkv::app::TranslationLoss;

// The least number of sentences for which scores with one reference are shown; fewer say little.
constexpr qkv::Index kFewestSentences = 100;

double per_token(const TranslationLoss& loss) {
  return loss.log_probability / static_cast<double>(loss.tokens);
}
double perplexity(const TranslationLoss& loss) { return std::exp(-per_token(loss)); }

std::string loss_text(const TranslationLoss& loss) {
  return fmt::format(
      "target tokens    {}, including end tokens\n"
      "log-probability  {:.4f}, {:.6f} per token\n"
      "perplexity       {:.6g}\n",
      loss.tokens, loss.log_probability, per_token(loss), perplexity(loss));
}

std::string score_text(const CorpusScore& score, const qkv::app::Signature& signature) {
  const auto& p = score.bleu.precisions;
  return fmt::format(
      "BLEU             {:.2f}, of 1 to 4 tokens {:.2f} {:.2f} {:.2f} {:.2f}, brevity {:.2f}\n"
      "                 {}\n"
      "chrF2            {:.2f}\n"
      "                 {}\n"
      "exact            {}, {:.2f} %\n",
      score.bleu.score, p[0], p[1], p[2], p[3], score.bleu.brevity_penalty, signature.bleu(),
      score.chrf, signature.chrf(), score.exact, score.exact_percent());
}

std::string one_reference_text(const OneReference& one) {
  const auto figures = [](const CorpusScore& score) {
    return fmt::format("BLEU {:.2f}, chrF2 {:.2f}", score.bleu.score, score.chrf);
  };
  return fmt::format(
      "one reference    the first, of sentences that have several: {}\n"
      "  translations   {}\n"
      "  humans         {}, the next reference in place of a translation\n",
      one.humans.sentences, figures(one.translations), figures(one.humans));
}

std::string rival_text(const Rival& rival) {
  return fmt::format(
      "against          {}:\n"
      "  BLEU           {:.2f} (p = {:.4f}), {}\n"
      "  chrF2          {:.2f} (p = {:.4f})\n"
      "  exact          {}, {:.2f} %\n",
      shown_name(rival.file), rival.score.bleu.score, rival.p.bleu,
      fmt::format("{} samples by seed {}", rival.resampling.samples, rival.resampling.seed),
      rival.score.chrf, rival.p.chrf, rival.score.exact, rival.score.exact_percent());
}

void add_loss(Json& json, const TranslationLoss& loss) {
  json["target_tokens"] = loss.tokens;
  json["log_probability"] = json_number(loss.log_probability);
  json["log_probability_per_token"] = json_number(per_token(loss));
  json["perplexity"] = json_number(perplexity(loss));
}

void add_score(Json& json, const CorpusScore& score) {
  json["bleu"] = score.bleu.score;
  json["bleu_precisions"] = score.bleu.precisions;
  json["bleu_brevity_penalty"] = score.bleu.brevity_penalty;
  json["chrf2"] = score.chrf;
  json["exact"] = score.exact;
  json["exact_percent"] = score.exact_percent();
}

Json one_reference_json(const OneReference& one) {
  Json json;
  json["sentences"] = one.humans.sentences;
  json["bleu_signature"] = one.signature.bleu();
  json["chrf2_signature"] = one.signature.chrf();
  add_score(json["translations"], one.translations);
  add_score(json["humans"], one.humans);
  return json;
}

Json rival_json(const Rival& rival, const qkv::app::Signature& signature) {
  Json json;
  json["file"] = rival.file;
  add_score(json, rival.score);
  json["bleu_p"] = rival.p.bleu;
  json["chrf2_p"] = rival.p.chrf;
  json["bleu_signature"] = signature.bleu(rival.resampling);
  json["chrf2_signature"] = signature.chrf(rival.resampling);
  return json;
}

}  // namespace

std::string text_of(const Scores& scores) {
  std::string text = fmt::format("pairs            {}\nsentences        {}\n", scores.pairs,
                                 scores.score.sentences);
  if (scores.loss) text += loss_text(*scores.loss);
  text += score_text(scores.score, scores.signature);
  const auto& one = scores.one_reference;
  if (one && one->humans.sentences >= kFewestSentences) text += one_reference_text(*one);
  if (scores.rival) text += rival_text(*scores.rival);
  return text;
}

Json json_of(const Scores& scores) {
  Json json;
  json["pairs"] = scores.pairs;
  json["sentences"] = scores.score.sentences;
  if (scores.loss) add_loss(json, *scores.loss);
  add_score(json, scores.score);
  json["bleu_signature"] = scores.signature.bleu();
  json["chrf2_signature"] = scores.signature.chrf();
  if (scores.one_reference) json["one_reference"] = one_reference_json(*scores.one_reference);
  if (scores.rival) json["against"] = rival_json(*scores.rival, scores.signature);
  return json;
}
