// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include <qkv/additive_memory.h>
#include <qkv/tensor.h>

#include "attention/fused_paths.h"
#include "attention/implementations.h"
#include "attention/rowmaps/mapped_backward.h"
#include "attention/rowmaps/mapped_forward.h"
#include "attention/validate/bind.h"
#include "attention/validate/resolve.h"
#include "core/message.h"

namespace qkv {
namespace attn {

// Memory for the arrays of a pass that are kept between calls.
class KeptMemory {
 public:
  template <class Take>
  void take(const Take& take) {
    core::MeasuringArena size;
    take(size);
    bytes_ = Tensor(DType::kUInt8, {static_cast<Index>(size.bytes())});
    core::Arena arena(static_cast<std::byte*>(bytes_.view().data()), size.bytes());
    take(arena);
  }

 private:
  Tensor bytes_;
};

// The transformed keys that an AdditiveMemory keeps, and their gradients.
template <class T>
struct KeptKeys {
  KeptKeys(const core::Problem& p, kernels::Target target) : keys(p, target) {
    keys_memory.take([&](auto& arena) { keys.take(p, p.B, arena); });
  }
  void begin_sums(const core::Problem& p) {
    const RowPlaces& places = keys.scores().keys;
    const Index rows = places.count(p.B);
    if (sums.gradients == nullptr) {
      sums_memory.take([&](auto& arena) {
        sums.gradients = arena.template take<T>(rows * p.U).data();
        sums.live = arena.template take<std::uint8_t>(rows).data();
      });
    }
    std::fill_n(sums.gradients, rows * p.U, T(0));
    std::fill_n(sums.live, rows, std::uint8_t{0});
  }
  bool has_sums() const { return sums.gradients != nullptr; }

  AdditiveKeys<T> keys;
  KeySums<T> sums;
  KeptMemory keys_memory, sums_memory;
};

}  // namespace attn

namespace {

using core::text;

constexpr std::string_view kMake = "AdditiveMemory";
constexpr std::string_view kMemoryForward = "AdditiveMemory::attention";
constexpr std::string_view kMemoryBackward = "AdditiveMemory::attention_backward";
constexpr std::string_view kGradients = "AdditiveMemory::key_gradients";

bool same(const ConstView& a, const ConstView& b) {
  return a.data() == b.data() && a.dtype() == b.dtype() && a.shape() == b.shape() &&
         a.strides() == b.strides();
}

// Checks k and Wq here, since resolve() would report errors about a query that the caller did not
// give.
void check(const ConstView& k, const Additive& score) {
  if (!k.given()) throw Error(kMake, "k", "is absent");
  if (k.rank() < 2) {
    throw Error(kMake, "k", text("must have rank 2 or more, got ", describe(k)));
  }
  if (!is_real(k.dtype())) {
    throw Error(kMake, "k",
                text("must be float64, float32, bfloat16 or float16, got ", describe(k)),
                ErrorKind::kType);
  }
  const ConstView& wq = score.wq;
  if (wq.given() && (wq.rank() < 2 || wq.size(-1) < 1)) {
    throw Error(kMake, "additive.wq",
                text("must have the shape [U,Dq] or [H,U,Dq], got ", describe(wq)));
  }
}

// Returns a q with one query per head, whose values are never read. It has the heads of k, or as
// many as a parameter that has an axis of heads.
ConstView any_query(const ConstView& k, const Additive& score) {
  static constexpr double kZero = 0;
  Dims shape = k.shape();
  Dims strides = k.shape();
  for (int axis = 0; axis < k.rank(); ++axis) strides[axis] = 0;
  const int rank = k.rank();
  shape[rank - 1] = score.wq.rank() >= 1 ? score.wq.shape()[score.wq.rank() - 1] : 1;
  shape[rank - 2] = 1;
  const std::pair<const ConstView*, int> parameters[] = {
      {&score.wq, 3}, {&score.wk, 3}, {&score.v, 2}, {&score.b, 2}};
  for (const auto& [parameter, per_head] : parameters) {
    if (rank > 3 && parameter->given() && parameter->rank() == per_head) {
      shape[rank - 3] = parameter->shape()[0];
    }
  }
  return {&kZero, k.dtype(), shape, strides};
}

// Whether any gradient but those of k and Wk is requested.
bool requests_any(const InputGradients& x) {
  const auto* score = std::get_if<AdditiveGradient>(&x.score);
  return x.q.given() || x.v.given() || x.bias.given() || x.alibi.given() || x.sinks.given() ||
         !x.captured.empty() || x.qk_norm.q.given() || x.qk_norm.k.given() ||
         (score == nullptr ? !std::holds_alternative<std::monostate>(x.score)
                           : score->wq.given() || score->v.given() || score->b.given());
}

// The pass that transforms and stores the keys.
template <class T>
class KeyPass {
 public:
  KeyPass(const core::Problem& p, kernels::Target target, attn::KeptKeys<T>& kept)
      : tools_(p, target), kept_(kept) {}
  template <class AnyArena>
  void take_shared(AnyArena&) {}
  std::size_t worker_bytes() const { return kept_.keys.worker_bytes(); }
  void run(runtime::Call& call) {
    tools_.stop = call.stop_point();
    kept_.keys.prepare(tools_, call);
    kept_.keys.make(tools_, {0, tools_.p.B}, call);
  }

 private:
  attn::FusedCall<T> tools_;
  attn::KeptKeys<T>& kept_;
};

// The pass that computes dk and dWk from the gradients of the transformed keys, summed in `kept`.
template <class T>
class KeyGradientPass {
 public:
  KeyGradientPass(const core::Problem& p, const core::GradientResults& to, kernels::Target target,
                  const attn::KeptKeys<T>& kept)
      : to_(to),
        tools_(p, target),
        kernels_(kernels::gradient_kernels<T>(target)),
        gradients_(tools_, kernels_, to),
        back_(attn::RowProduct<T>::back(p.key_maps.product, p.H, p.Dk)),
        keys_(attn::InputRows<T>::of_keys(p)),
        made_{keys_, kept.sums.gradients, kept.sums.live, {0, p.B}},
        dk_(p, to.k, keys_.places, p.G, p.Dk) {}
  KeyGradientPass(const KeyGradientPass&) = delete;
  KeyGradientPass& operator=(const KeyGradientPass&) = delete;
  template <class AnyArena>
  void take_shared(AnyArena& arena) {
    if (to_.k.given()) back_.take(arena);
    gradients_.own().take(arena, [&](const core::GradientTarget& target) {
      return &target != &to_.k || dk_.is_summed();
    });
  }
  std::size_t worker_bytes() const { return gradients_.worker_bytes(back_.padded_units()); }
  void run(runtime::Call& call) {
    take_shared(call.shared());
    tools_.stop = call.stop_point();
    gradients_.own().clear(tools_.stop, [](const core::GradientTarget&) { return true; });
    if (to_.k.given()) {
      back_.pack(tools_, call);
      gradients_.map_back(made_, back_, dk_, call);
    }
    if (to_.key.w.given()) {
      gradients_.parameter(made_, attn::RowGradients<T>::First::kGradients, to_.key.w, call);
    }
    gradients_.own().deliver(tools_.stop);
  }

 private:
  const core::GradientResults& to_;
  attn::FusedCall<T> tools_;
  const kernels::GradientKernels<T>& kernels_;
  attn::RowGradients<T> gradients_;
  attn::RowProduct<T> back_;
  attn::InputRows<T> keys_;
  attn::MadeGradients<T> made_;
  attn::GradientRows<T> dk_;
};

// Writes x to the buffer `to`, or with kAccumulate adds it there; x may be overwritten.
void deliver(Tensor& x, const View& to, Write write) {
  if (write == Write::kAccumulate) {
    Tensor before(to.dtype(), to.shape());
    copy(to, before);
    core::visit_dtype(x.dtype(), [&]<class Stored>(Stored*) {
      Stored* sum = x.view().as<Stored>();
      const Stored* more = ConstView(before.view()).as<Stored>();
      for (Index n = 0; n < x.element_count(); ++n) {
        using T = std::conditional_t<std::is_same_v<Stored, double>, double, float>;
        sum[n] = core::from_accumulator<Stored>(core::to_accumulator<T>(sum[n]) +
                                                core::to_accumulator<T>(more[n]));
      }
    });
  }
  copy(x, to);
}

template <class Pass>
void run(Pass&& pass, Context& context, std::string_view function) {
  const core::ScratchSize size = core::measure(pass);
  runtime::Call call(context, function, size.shared, size.per_worker);
  pass.run(call);
}

}  // namespace

struct AdditiveMemory::State {
  Inputs inputs;  // k, and any_query() of k
  Options options;
  Context* context = nullptr;
  core::ResolvedProblem problem;
  const attn::Implementation* path = nullptr;
  std::optional<kernels::Target> target;  // empty if no transformed keys are kept
  std::unique_ptr<attn::KeptKeys<float>> float32;
  std::unique_ptr<attn::KeptKeys<double>> float64;
  // dk and dWk, summed over backward calls that do not use transformed keys.
  Tensor dk, dwk;

  // Calls f(kept) for the accumulator's type.
  template <class F>
  void with_kept(const F& f) {
    if (problem.accumulator == DType::kFloat64) {
      f(*float64);
    } else {
      f(*float32);
    }
  }
  const Additive& score() const { return std::get<Additive>(options.score); }

  void begin_plain_sums() {
    dk = Tensor(inputs.k.dtype(), inputs.k.shape());
    dwk = Tensor(score().wk.dtype(), score().wk.shape());
  }

  // Checks that a call matches this memory.
  void check(std::string_view function, const Inputs& in, const Options& with) const {
    const auto complain = [&](std::string_view name) {
      throw Error(function, name, "is not the array that the memory was made with");
    };
    const auto refuse_given = [&](std::string_view name, bool is_given, std::string_view what) {
      if (is_given) throw Error(function, name, text("is given, but a memory is not for ", what));
    };
    refuse_given("cu_seqlens_q", in.cu_seqlens_q.given(), "packed sequences");
    refuse_given("cu_seqlens_k", in.cu_seqlens_k.given(), "packed sequences");
    refuse_given("block_tables", in.block_tables.given(), "keys in pages");
    refuse_given("context_lens", in.context_lens.given(), "keys in pages");
    refuse_given("shard", in.shard.has_value(), "a part of the keys");
    const auto* given = std::get_if<Additive>(&with.score);
    if (given == nullptr) throw Error(function, "options.score", "must be the memory's Additive");
    const auto refuse = [&](std::string_view name) {
      throw Error(function, name, "is given, but the keys of a memory are made without it");
    };
    if (with.qk_norm) refuse("options.qk_norm");
    if (with.rotary) refuse("options.rotary");
    if (!same(in.k, inputs.k)) complain("k");
    if (!same(given->wq, score().wq)) complain("additive.wq");
    if (!same(given->wk, score().wk)) complain("additive.wk");
    if (!same(given->v, score().v)) complain("additive.v");
    if (!same(given->b, score().b)) complain("additive.b");
  }
  void check_sizes(const core::Problem& p) const {
    const auto complain = [&](const char* letter, Index came, Index made_for) {
      throw Error(p.function, "q",
                  text("gives a call with ", letter, " = ", came, ", but the memory was made for ",
                       letter, " = ", made_for));
    };
    if (p.B != problem.B) complain("B", p.B, problem.B);
    if (p.batch != problem.batch) {
      throw Error(p.function, "q",
                  text("gives a call with batch axes ", to_string(p.batch),
                       ", but the memory was made for ", to_string(problem.batch)));
    }
    if (p.H != problem.H) complain("H", p.H, problem.H);
    if (p.accumulator != problem.accumulator) {
      throw Error(p.function, "q", "has another accumulator type than the memory's k",
                  ErrorKind::kType);
    }
  }
};

AdditiveMemory::AdditiveMemory(const ConstView& k, const Additive& score, Context& context)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  check(k, score);
  s.inputs = {.q = any_query(k, score), .k = k};
  s.options.score = score;
  s.context = &context;
  attn::resolve(kMake, runtime::stop_point(context, kMake), s.inputs, s.options, s.problem);
  s.path = &attn::choose(s.problem, context.forced_path(), attn::Pass::kForward);
  if (attn::runs_on_tiles(s.problem)) s.target = s.path->target;
  if (!s.target) return;
  if (s.problem.accumulator == DType::kFloat64) {
    s.float64 = std::make_unique<attn::KeptKeys<double>>(s.problem, *s.target);
  } else {
    s.float32 = std::make_unique<attn::KeptKeys<float>>(s.problem, *s.target);
  }
  s.with_kept([&]<class T>(attn::KeptKeys<T>& kept) {
    run(KeyPass<T>(s.problem, *s.target, kept), context, kMake);
  });
}

AdditiveMemory::~AdditiveMemory() = default;
AdditiveMemory::AdditiveMemory(AdditiveMemory&&) noexcept = default;
AdditiveMemory& AdditiveMemory::operator=(AdditiveMemory&&) noexcept = default;

std::string_view AdditiveMemory::path() const noexcept { return state_->path->name; }

void AdditiveMemory::attention(const Inputs& inputs, const Options& options,
                               const Outputs& outputs) {
  State& s = *state_;
  s.check(kMemoryForward, inputs, options);
  core::ResolvedProblem p;
  attn::resolve(kMemoryForward, runtime::stop_point(*s.context, kMemoryForward), inputs, options,
                p);
  s.check_sizes(p);
  if (!s.target || !attn::runs_on_tiles(p))
    return qkv::attention(inputs, options, outputs, *s.context);
  const core::Results results = attn::bind_outputs(p, outputs);
  attn::check_overlap(p, inputs, options, outputs);
  s.with_kept([&]<class T>(attn::KeptKeys<T>& kept) {
    run(attn::MappedForward<T>(p, results, *s.target, &kept.keys), *s.context, kMemoryForward);
  });
}

void AdditiveMemory::attention_backward(const Inputs& inputs, const Options& options,
                                        const Saved& saved, const OutputGradients& output_gradients,
                                        const InputGradients& input_gradients) {
  State& s = *state_;
  s.check(kMemoryBackward, inputs, options);
  core::ResolvedProblem p;
  attn::resolve(kMemoryBackward, runtime::stop_point(*s.context, kMemoryBackward), inputs, options,
                p);
  s.check_sizes(p);
  const auto refuse = [](std::string_view name) {
    throw Error(kMemoryBackward, name, "is given, but key_gradients() computes it");
  };
  if (input_gradients.k.given()) refuse("input_gradients.k");
  const auto* score = std::get_if<AdditiveGradient>(&input_gradients.score);
  if (score != nullptr && score->wk.given()) refuse("input_gradients.score.wk");
  const core::GradientSources sources = attn::bind_sources(p, saved, output_gradients);
  core::GradientResults results;
  if (requests_any(input_gradients)) {
    results = attn::bind_gradients(p, inputs, options, input_gradients);
  }
  attn::check_overlap(p, inputs, options, saved, output_gradients, input_gradients);
  if (!s.target || !attn::runs_on_tiles(p)) {
    if (requests_any(input_gradients)) {
      qkv::attention_backward(inputs, options, saved, output_gradients, input_gradients,
                              *s.context);
    }
    if (!s.dk.given()) s.begin_plain_sums();
    return qkv::attention_backward(inputs, options, saved, output_gradients,
                                   {.k = s.dk.view(),
                                    .score = AdditiveGradient{.wk = s.dwk.view()},
                                    .write = Write::kAccumulate},
                                   *s.context);
  }
  s.with_kept([&]<class T>(attn::KeptKeys<T>& kept) {
    if (!kept.has_sums()) kept.begin_sums(s.problem);
    run(attn::MappedBackward<T>(p, sources, results, *s.target, &kept.keys, &kept.sums), *s.context,
        kMemoryBackward);
  });
}

void AdditiveMemory::key_gradients(const View& dk, const View& dwk, Write write) {
  State& s = *state_;
  s.problem.function = kGradients;
  const InputGradients gradients{.k = dk, .score = AdditiveGradient{.wk = dwk}, .write = write};
  const core::GradientResults to = attn::bind_gradients(s.problem, s.inputs, s.options, gradients);
  attn::check_overlap(s.problem, s.inputs, s.options, {}, {}, gradients);
  if (!s.target) {
    if (!s.dk.given()) s.begin_plain_sums();
    if (dk.given()) deliver(s.dk, dk, write);
    if (dwk.given()) deliver(s.dwk, dwk, write);
    return s.begin_plain_sums();
  }
  s.with_kept([&]<class T>(attn::KeptKeys<T>& kept) {
    if (!kept.has_sums()) kept.begin_sums(s.problem);
    run(KeyGradientPass<T>(s.problem, to, *s.target, kept), *s.context, kGradients);
    kept.begin_sums(s.problem);
  });
}

}  // namespace qkv
