// SPDX-License-Identifier: Apache-2.0
#include "translator/training/translation_training.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include <qkv/error.h>
#include <qkv/layers/parameters.h>

#include "ranks/collective.h"
#include "translator/data/batches.h"
#include "translator/training/kept_checkpoints.h"
#include "translator/training/training_log.h"
#include "translator/training/validation.h"

namespace qkv::app {
namespace {

// The kinds of lines in Counts::line_due and Counts::line_done.
constexpr Index kLine = 1;
constexpr Index kValidation = 2;

// True if an action at intervals of updates or epochs is due after this update.
bool is_due(const Budget& every, const Counts& counts) {
  const bool epoch_ended = counts.batch == 0;
  return (every.updates && counts.spent.updates % *every.updates == 0) ||
         (every.epochs && epoch_ended && counts.spent.epochs % *every.epochs == 0);
}

// The figures of a validation, with its BLEU if there is one.
std::string figures(const CurvePoint& point) {
  std::string text = point.bleu ? fmt::format("BLEU {:.2f}, ", *point.bleu) : "";
  return text + fmt::format("loss {:.4f}", point.valid_loss.value_or(std::nan("")));
}

}  // namespace

Training::Training(const TrainingOptions& options, const TranslationData& data,
                   const LockedFolder* folder, const TrainingHooks& hooks, Ranks& ranks)
    : options_(options),
      data_(data),
      folder_(folder),
      hooks_(hooks),
      ranks_(ranks),
      lengths_(data.train.lengths()),
      state_({Translator(options.model), data.source, data.target, data.tokenizer, data.style,
              data.longest_source},
             options.adam, EarlyStopping(options.patience, options.best), !options.valid.empty()),
      gradients_(state_.model.translator, options.executor, hooks.stop, ranks) {}

void Training::begin() {
  if (folder_->holds(kStateFile)) {
    state_.restore(*folder_);
    make_batches();
    if (state_.counts.batch >= std::ssize(batches_)) {
      throw InputError(folder_->file(kStateFile),
                       fmt::format("run.batch: expected less than the {} of the epoch, got {}",
                                   std::ssize(batches_), state_.counts.batch));
    }
    resumed_ = state_.counts.spent.updates;
    remove_checkpoints_after(*folder_, *resumed_);
    const bool goes_on =
        !is_spent(options_.after, state_.counts.spent) && !state_.stopping.is_over();
    const std::vector<CurvePoint> points = curve_if_end_was_best();
    // A run that goes on ignores the validation at the previous run's end. A run that is over keeps
    // the model of that validation.
    const bool disk_has_better = !points.empty() && folder_->holds(kBestFile);
    state_.write_models(*folder_, goes_on || !disk_has_better);
    if (goes_on && !points.empty()) warn_of_ignored_validation(points);
  } else {
    check_nothing_is_lost();
    initialise(state_.model.translator, options_.seed);
    state_.save(*folder_);
  }
}

// report() writes the parameters of a run's end to best.safetensors if they are the best so far,
// but not to the state. If the last line of train.jsonl is such a validation, returns all points of
// the file; otherwise none.
std::vector<CurvePoint> Training::curve_if_end_was_best() const {
  if (state_.log.empty()) return {};
  try {
    std::vector<CurvePoint> points = read_training_curve(folder_->file(kLogFile));
    if (points.back().is_end && points.back().is_best) return points;
  } catch (const InputError&) {
    // Training does not need the lines of earlier runs.
  }
  return {};
}

// Warns that the validation at the end of the previous run no longer counts, and says which
// parameters are the best instead.
void Training::warn_of_ignored_validation(std::vector<CurvePoint> points) const {
  if (!hooks_.warning) return;
  const CurvePoint end = points.back();
  std::string best = "best.safetensors holds the latest parameters until the next validation";
  points.pop_back();
  for (const CurvePoint& point : points) {
    if (point.is_best) {
      best = fmt::format("the best is again that of update {} ({})", point.update, figures(point));
    }
  }
  hooks_.warning(
      fmt::format("{}: the validation at update {} ({}) does not count in a run that goes on; {}",
                  folder_->path(), end.update, figures(end), best));
}

void Training::share() {
  state_.share(ranks_);
  is_saved_ = true;  // begin() has saved or restored this state
  saved_update_ = state_.counts.spent.updates;
  saved_seconds_ = state_.counts.spent.seconds;
  pace_.start(saved_seconds_);
}

// Throws InputError if parameters exist without a state. A save writes the state before any
// parameters, so the state must have been removed.
void Training::check_nothing_is_lost() const {
  for (const char* name : {kModelFile, kBestFile}) {
    if (!folder_->holds(name)) continue;
    throw InputError(folder_->file(kStateFile),
                     fmt::format("is missing beside {}: without it this run cannot be "
                                 "resumed; use another folder to start over",
                                 name));
  }
}

void Training::run() {
  try {
    loop();
  } catch (const Cancelled&) {
    // The update or validation that was interrupted is repeated when the run is resumed.
    is_stopped_ = true;
  }
  finish();
}

// Validates and saves at the end of a run. A run with a larger budget would not validate here, so
// the validation must not affect what a resumed run computes; it only adds a line to train.jsonl.
void Training::finish() {
  if (!is_stopped_) look_at_flag();
  bool validated = false;
  if (!options_.valid.empty() && !is_stopped_) {
    if (!is_saved_) save();  // a process killed in a long validation then loses nothing
    validated = try_to_score();
    if (!is_stopped_) look_at_flag();
  }
  write_end_line(validated);
  if (!is_saved_) save();
}

// Writes the line that marks the run's end. It is left out if the update already has a line (with a
// validation, if `validated`), or if a line is still due, which the resumed run will write.
void Training::write_end_line(bool validated) {
  Counts& counts = state_.counts;
  const Index kind = validated ? kValidation : kLine;
  if (counts.spent.updates == 0 || counts.line_due != 0 || counts.line_done >= kind) return;
  std::optional<bool> is_best;
  if (validated) is_best = state_.stopping.is_better(quality());
  add_line(is_stopped_ ? "stopped" : "budget", is_best);
  counts.line_done = kind;
}

void Training::loop() {
  for (;;) {
    if (state_.counts.line_due != 0) write_line();
    if (is_save_due()) save();
    if (is_over()) return;
    update();
    report_progress();
  }
}

// Sets is_stopped_ if the stop flag is set on any rank. All ranks call this at the same points, so
// that all stop at the same one.
void Training::look_at_flag() {
  is_stopped_ =
      ranks::any(ranks_, hooks_.stop != nullptr && hooks_.stop->load(std::memory_order_relaxed));
}

// The time of the first rank's clock.
double Training::seconds() {
  double seconds = pace_.seconds();
  ranks::broadcast(ranks_, seconds);
  return seconds;
}

bool Training::is_over() {
  look_at_flag();
  return is_stopped_ || is_spent(options_.after, state_.counts.spent) || state_.stopping.is_over();
}

// True if a validation is due after this update. A time is counted from the end of the last
// validation, so that there is training between two of them, however long they take.
bool Training::is_validation_due() const {
  const Counts& counts = state_.counts;
  const auto& seconds = options_.validate_every.seconds;
  return is_due(options_.validate_every, counts) ||
         (seconds && counts.spent.seconds - counts.valid_seconds >= *seconds);
}

bool Training::is_save_due() const {
  if (saved_update_ == state_.counts.spent.updates) return false;
  const auto& seconds = options_.save_every.seconds;
  return is_due(options_.save_every, state_.counts) ||
         (seconds && state_.counts.spent.seconds - saved_seconds_ >= *seconds);
}

// Makes the batches of the current epoch.
void Training::make_batches() {
  const Index epoch = state_.counts.spent.epochs;
  if (batches_epoch_ == epoch) return;
  batches_ = epoch_batches(lengths_, {options_.batch_tokens, options_.seed}, epoch);
  batches_epoch_ = epoch;
}

// Takes one update with the next batch of the epoch.
void Training::update() {
  Counts& counts = state_.counts;
  make_batches();
  std::vector<TokenPair> pairs;
  for (const Index n : batches_[static_cast<std::size_t>(counts.batch)]) {
    pairs.push_back(data_.train.pair(n));
  }
  learn_from(gradients_.compute(pairs, options_.seed, counts.spent.updates + 1));
  if (++counts.batch == std::ssize(batches_)) {
    counts.batch = 0;
    ++counts.spent.epochs;
  }
  counts.spent.seconds = seconds();
  schedule_line();
}

// Takes one step of Adam on a batch's gradients. Throws Diverged before anything changes.
void Training::learn_from(const TranslationLoss& loss) {
  Counts& counts = state_.counts;
  const auto list = gradients_.list(state_.model.translator);
  const auto tokens = static_cast<double>(loss.tokens);
  const double norm = gradient_norm(list, options_.executor) / tokens;
  const Index update = counts.spent.updates + 1;
  if (!std::isfinite(loss.loss)) fail(fmt::format("the loss is {}", loss.loss), update);
  if (!std::isfinite(norm)) fail(fmt::format("the norm of the gradient is {}", norm), update);
  // The gradients are those of a sum over tokens. The factor makes them those of the mean, and
  // clips them.
  state_.adam.step(list,
                   {.learning_rate = learning_rate(options_.schedule, counts.spent.updates + 1),
                    .gradient_factor = clip_factor(norm, options_.clip) / tokens},
                   options_.executor);
  ++counts.spent.updates;
  counts.loss += loss.loss;
  counts.tokens += loss.tokens;
  counts.last_loss = loss.loss / tokens;
  counts.last_norm = norm;
  ++counts.line_updates;
  if (norm > options_.clip) ++counts.clipped;
  pace_.add_update(loss.tokens);
  is_saved_ = false;
  counts.line_done = 0;
  score_.reset();
}

void Training::fail(const std::string& what, Index update) const {
  throw Diverged(fmt::format(
      "{} at update {}; {} holds update {}, the last save; a smaller learning rate or "
      "clipping may help",
      what, update, folder_ == nullptr ? "the folder" : folder_->path(), saved_update_));
}

// Decides which line this update needs. If a validation is due, also writes a checkpoint, even
// without validation data.
void Training::schedule_line() {
  Counts& counts = state_.counts;
  const bool due = is_validation_due();
  const bool validate = due && !options_.valid.empty();
  counts.line_due = validate ? kValidation : counts.batch == 0 ? kLine : 0;
  if (due) write_checkpoint();
  if (due && !validate) counts.valid_seconds = counts.spent.seconds;
}

// Writes a checkpoint. It is called before the validation, which may be interrupted.
void Training::write_checkpoint() {
  if (options_.keep == 0) return;
  check_finite();
  if (folder_ == nullptr) return;
  write_model_file(folder_->file(checkpoint_name(state_.counts.spent.updates)), state_.model);
}

void Training::write_line() {
  Counts& counts = state_.counts;
  std::optional<bool> is_best;
  if (counts.line_due == kValidation) {
    is_best = state_.stopping.take(quality());
    if (*is_best) state_.keep_best();
    counts.valid_seconds = seconds();
  }
  add_line("", is_best);
  counts.line_done = std::exchange(counts.line_due, 0);
  counts.loss = 0;
  counts.tokens = 0;
  counts.line_updates = 0;
  counts.clipped = 0;
  counts.line_seconds = counts.spent.seconds;
}

// Adds a line of train.jsonl to the state, whose save writes it. `is_best` is given if there was a
// validation, which is then reported.
void Training::add_line(const char* end, std::optional<bool> is_best) {
  state_.counts.spent.seconds = seconds();
  const Counts& counts = state_.counts;
  LogLine line{.spent = counts.spent,
               .end = end,
               .learning_rate = learning_rate(options_.schedule, counts.spent.updates),
               .gradient_norm = counts.last_norm,
               .clipped = clipped()};
  if (counts.tokens > 0) {
    const auto tokens = static_cast<double>(counts.tokens);
    line.loss = counts.loss / tokens;
    line.tokens_per_second = tokens / (counts.spent.seconds - counts.line_seconds);
  }
  if (is_best) {
    line.validation = {counts.spent, counts.batch, std::ssize(batches_),
                       score(),      *is_best,     line.clipped};
    if (hooks_.validation) hooks_.validation(*line.validation);
  }
  state_.log += text_of(line);
  is_saved_ = false;
}

std::optional<double> Training::clipped() const {
  const Counts& counts = state_.counts;
  if (counts.line_updates == 0 || std::isinf(options_.clip)) return std::nullopt;
  return static_cast<double>(counts.clipped) / static_cast<double>(counts.line_updates);
}

void Training::check_finite() const {
  if (!state_.is_finite()) fail("a parameter is not finite", state_.counts.spent.updates);
}

void Training::save() {
  check_finite();
  state_.counts.spent.seconds = seconds();
  if (folder_ != nullptr) {
    state_.save(*folder_);
    keep_last_checkpoints(*folder_, options_.keep);
  }
  is_saved_ = true;
  saved_update_ = state_.counts.spent.updates;
  saved_seconds_ = state_.counts.spent.seconds;
}

// The validation of the current parameters. Its time is part of the run's time, but is left out of
// the training speed.
const ValidationScore& Training::score() {
  if (score_) return *score_;
  const double start = seconds();
  score_ = validate(state_.model, data_.valid, state_.counts.spent.updates, options_.executor,
                    hooks_.stop, ranks_);
  const double spent = seconds() - start;
  state_.counts.line_seconds += spent;
  pace_.add_validation(spent);
  return *score_;
}

Quality Training::quality() {
  Quality quality{.loss = score().loss};
  if (score().has_bleu) quality.bleu = score().bleu;
  return quality;
}

// Validates the current parameters. Returns false if the flag was set meanwhile.
bool Training::try_to_score() {
  try {
    score();
    return true;
  } catch (const Cancelled&) {
    is_stopped_ = true;
    return false;
  }
}

void Training::report_progress() const {
  if (!hooks_.progress) return;
  const Counts& counts = state_.counts;
  TrainingProgress progress;
  progress.spent = counts.spent;
  progress.batches = std::ssize(batches_);
  progress.batch = counts.batch;
  progress.loss = counts.last_loss;
  progress.tokens_per_second = pace_.tokens_per_second();
  const Budget never;
  progress.seconds_left =
      seconds_left(options_.after, options_.valid.empty() ? never : options_.validate_every,
                   {counts.spent, counts.batch, progress.batches}, pace_.speed());
  hooks_.progress(progress);
}

TrainingReport Training::report() {
  if (!is_stopped_) look_at_flag();
  TrainingReport report;
  report.end = is_stopped_                 ? TrainingEnd::kStopped
               : state_.stopping.is_over() ? TrainingEnd::kPatience
                                           : TrainingEnd::kBudget;
  report.spent = state_.counts.spent;
  report.resumed = resumed_;
  report.pairs = data_.train.facts.pairs;
  report.left_out = data_.train.facts.left_out;
  report.source_tokens = data_.source.size();
  report.target_tokens = data_.target.size();
  report.parameters = parameter_count(state_.model.translator);
  report.loss = state_.counts.last_loss;
  report.best = state_.stopping.best();
  report.best_by = options_.best;
  if (options_.valid.empty() || !score_) return report;
  report.valid = *score_;
  if (state_.stopping.is_better(quality())) {
    if (folder_ != nullptr) write_model_file(folder_->file(kBestFile), state_.model);
    report.best = quality();
  }
  return report;
}

}  // namespace qkv::app
