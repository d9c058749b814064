// SPDX-License-Identifier: Apache-2.0
// The group "dense": matrix products of layers in float32, with shapes of the translator's training
// and with large ones; and GRUs, whose steps are products.
#include <span>

#include <fmt/format.h>

#include <qkv/layers.h>
#include <qkv/target.h>

#include "check.h"
#include "groups.h"

namespace qkv::bench {
namespace {

Context context_of(const Session& session, int threads) {
  Context context(threads == 1 ? Executor() : Executor::threads(threads));
  context.set_stop_flag(session.settings().stop);
  return context;
}

std::string path_of(const char* layer) { return fmt::format("{}/{}", layer, cpu_target()); }

// ---- products -------------------------------------------------------------------------------

struct Size3 {
  Index rows;
  Index in;
  Index out;
};
// In order: a translator's readout layer W_r, for a step and for a batch; the input of its
// decoder's GRU; two large products; a layer of a large vocabulary.
constexpr Size3 kSizes[] = {{24, 224, 128},   {1536, 224, 128},   {400, 160, 192},
                            {512, 512, 2048}, {2048, 1024, 1024}, {64, 256, 10000}};
// The sizes that are large enough for a second thread.
constexpr Size3 kThreadSizes[] = {{400, 160, 192}, {1536, 224, 128}, {2048, 1024, 1024}};
// Sizes with few rows, measured with prepacked weights.
constexpr Size3 kPackedSizes[] = {{24, 224, 128}, {64, 256, 10000}};

struct Named {
  Gives gives;
  const char* name;
};
constexpr Named kGives[] = {{Gives::kOutput, "forward"},
                            {Gives::kInputGradient, "input"},
                            {Gives::kWeightGradient, "weight"}};

Size3 sized(const Session& session, const Size3& s) {
  return {session.length(s.rows), session.length(s.in), session.length(s.out)};
}

std::string name_of(const Size3& s, const char* what) {
  return fmt::format("dense/{}x{}x{}-{}", s.rows, s.in, s.out, what);
}

// Every variant of the first peer that supports the product. Allocates `result`, to which the
// variants write.
std::vector<PeerTask> peers_of(const Session& session, Product& product, Tensor& result,
                               int threads) {
  std::vector<PeerTask> tasks;
  result = Tensor(DType::kFloat32, product.to().shape());
  for (const Peer& peer : session.settings().peers) {
    if (!peer.bind_product) continue;
    for (const Way& way : peer.bind_product(product, result, threads)) {
      tasks.push_back({peer.name, way, [&] { return fault_of(product, result); }});
    }
    if (!tasks.empty()) break;
  }
  return tasks;
}

void run_product(Session& session, const Size3& size, const Named& named, int threads) {
  const Size3 s = sized(session, size);
  Product product(named.gives, s.rows, s.in, s.out);
  Context context = context_of(session, threads);
  Tensor theirs;
  Task task;
  task.path = path_of("linear");
  task.work = work_of(product);
  task.run = [&] { run(product, context); };
  task.fault = [&] { return fault_of(product, product.to()); };
  task.peers = peers_of(session, product, theirs, threads);
  const std::string name = name_of(s, named.name) + (threads > 1 ? "-threads" : "");
  session.share_of_peak({name, std::nullopt, threads}, task);
}

void run_packed(Session& session, const Size3& size) {
  const Size3 s = sized(session, size);
  Product product(Gives::kOutput, s.rows, s.in, s.out);
  Context context = context_of(session, 1);
  const PackedLinear packed(product.layer.parameters(), context);
  Tensor theirs;
  Task task;
  task.path = path_of("linear");
  task.work = work_of(product);
  task.run = [&] { packed.forward(product.x, product.result); };
  task.fault = [&] { return fault_of(product, product.to()); };
  task.peers = peers_of(session, product, theirs, 1);
  session.share_of_peak({name_of(s, "packed")}, task);
}

// ---- gated recurrent units ------------------------------------------------------------------

struct GruSize {
  Index B;
  Index T;
  Index input;
  Index hidden;
};
constexpr GruSize kGrus[] = {{32, 25, 32, 64}, {32, 50, 256, 256}};

// A GRU with the memory of its calls. All B sequences are T long.
struct GruCall {
  GruSize size;
  Gru layer;
  Tensor x, dout, out, dx;
  Gru::Saved saved{};
  Gru::Parameters gradients;

  explicit GruCall(const GruSize& s)
      : size(s),
        layer({.input = s.input, .hidden = s.hidden}),
        x(DType::kFloat32, {s.B, s.T, s.input}),
        dout(DType::kFloat32, {s.B, s.T, s.hidden}),
        out(DType::kFloat32, {s.B, s.T, s.hidden}),
        dx(DType::kFloat32, {s.B, s.T, s.input}),
        gradients(layer.zero_gradients()) {
    initialise(layer, 1);
    fill_random(x, 2);
    fill_random(dout, 3);
  }
  void forward(Context& context) { layer.forward({x}, saved, {.out = out}, context); }
  void backward(Context& context) {
    layer.backward(saved, {.out = dout}, {.x = dx}, gradients, context);
  }
  std::vector<View> results(Pass pass) {
    if (pass == Pass::kForward) return {out};
    std::vector<View> views = {dx};
    for_each_parameter(gradients, [&](const auto& p) { views.push_back(p.value); });
    return views;
  }
};

// Floating-point operations: two for each multiply-add of the six products of a step, and twice as
// many in the backward pass.
double work_of(const GruSize& s, Pass pass) {
  const Index step = Index{6} * s.hidden * (s.input + s.hidden);
  return static_cast<double>((pass == Pass::kForward ? 1 : 2) * s.B * s.T * step);
}

// Compares all results with those of the path "reference" and returns the first difference, or "".
// The bound allows for exponentials that differ in their last bits, and for sums of them.
std::string fault_of(GruCall& call, Pass pass) {
  Context reference;
  reference.force_path("reference");
  GruCall want(call.size);
  want.forward(reference);
  if (pass == Pass::kBackward) want.backward(reference);
  const std::vector<View> got = call.results(pass);
  const std::vector<View> wanted = want.results(pass);
  for (std::size_t n = 0; n < got.size(); ++n) {
    std::string fault = difference(got[n], wanted[n], 0x1p-16 * most_of(wanted[n]));
    if (!fault.empty()) return fault;
  }
  return "";
}

void run_gru(Session& session, GruSize s, Pass pass) {
  if (session.is_quick()) s = {2, session.length(s.T), s.input, s.hidden};
  GruCall call(s);
  Context context = context_of(session, 1);
  call.forward(context);
  Task task;
  task.path = path_of("gru");
  task.work = work_of(s, pass);
  task.run = [&] { pass == Pass::kForward ? call.forward(context) : call.backward(context); };
  task.fault = [&] { return fault_of(call, pass); };
  session.share_of_peak({fmt::format("dense/gru-B{}-T{}-I{}-H{}-{}", s.B, s.T, s.input, s.hidden,
                                     pass == Pass::kForward ? "forward" : "backward")},
                        task);
}

// The sizes to measure: all, in a quick run only the first, since the others run the same code.
template <class S, std::size_t n>
std::span<const S> wanted(const Session& session, const S (&sizes)[n]) {
  return {sizes, session.is_quick() ? 1 : n};
}

}  // namespace

void run_dense(Session& session) {
  for (const Named& named : kGives) {
    for (const Size3& size : wanted(session, kSizes)) run_product(session, size, named, 1);
    if (session.threads() == 1) continue;
    for (const Size3& size : wanted(session, kThreadSizes)) {
      run_product(session, size, named, session.threads());
    }
  }
  for (const Size3& size : wanted(session, kPackedSizes)) run_packed(session, size);
  for (const Pass pass : {Pass::kForward, Pass::kBackward}) {
    for (const GruSize& size : wanted(session, kGrus)) run_gru(session, size, pass);
  }
}

}  // namespace qkv::bench
