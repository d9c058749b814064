// SPDX-License-Identifier: Apache-2.0
#include "layers/gru_sequence.h"

#include <algorithm>

#include "core/integers.h"

namespace qkv::layers {
namespace {

using runtime::Arena;
using runtime::Call;

constexpr Index kProjectedSteps = 64;  // steps projected at a time: bounds a task's memory

// Returns the address of row (first, second) of a view of rank 3. Channels may be strided.
template <class T, class AnyView>
T* at(const AnyView& view, Index first, Index second) {
  return view.template as<std::remove_const_t<T>>() + first * view.stride(0) +
         second * view.stride(1);
}

// Writes n elements of `from` to `to`, or adds them, as `write` says. Strides are in elements.
template <class T>
void put(const T* from, Index from_stride, Index n, T* to, Index to_stride, Write write) {
  for (Index c = 0; c < n; ++c) {
    T& target = to[c * to_stride];
    const T value = from[c * from_stride];
    target = write == Write::kAccumulate ? target + value : value;
  }
}

// The batch entries of one task, first .. first + rows - 1, in one direction.
struct Entries {
  Index direction = 0;
  Index first = 0;
  Index rows = 0;
  Index longest = 0;  // length of the entries' longest sequence
};

template <class F>
void for_each_entries(Call& call, const GruSequence& s, const F& f) {
  const Index blocks = core::divide_up(s.B, kGruRows);
  call.for_each_task(s.directions * blocks, [&](Index task, Arena& arena) {
    Entries e;
    e.direction = task / blocks;
    e.first = task % blocks * kGruRows;
    e.rows = std::min(kGruRows, s.B - e.first);
    e.longest = *std::max_element(s.lengths + e.first, s.lengths + e.first + e.rows);
    f(e, arena);
  });
}

// Returns the entries' rows at time t of `steps`, [directions,B,T,width].
template <class T, class AnyView>
RowsOf<T> step_rows(const GruSequence& s, const AnyView& steps, const Entries& e, Index t) {
  const Index width = steps.size(-1);
  T* const data = steps.template as<std::remove_const_t<T>>();
  return {data + ((e.direction * s.B + e.first) * s.T + t) * width, s.T * width};
}

// Returns the time of step n of the entries' direction. The backward direction starts at the end of
// the longest sequence.
Index time_of(const Entries& e, Index n) { return e.direction == 0 ? n : e.longest - 1 - n; }

// ---- forward --------------------------------------------------------------------------------

template <class T>
struct ForwardTask {
  const GruSequence& s;
  const GruLoops<T>& loops;
  const GruWeights<T>& w;
  const GruTensors& tensors;
  const Entries& e;
  RowsOf<T> h;   // [rows,hidden]: the current state
  RowsOf<T> xs;  // [rows * kProjectedSteps,3 hidden]
  RowsOf<T> hs;  // [rows,3 hidden]

  bool lives(Index r, Index t) const { return t < s.lengths[e.first + r]; }

  // Computes xs of times from .. until - 1, for each row up to the end of its sequence.
  void project(Index from, Index until) const {
    const T* const x = tensors.x.values<T>().data();
    for (Index r = 0; r < e.rows; ++r) {
      const Index count = std::min(until, s.lengths[e.first + r]) - from;
      if (count <= 0) continue;
      loops.project_input(w, {x + ((e.first + r) * s.T + from) * s.input, s.input}, count,
                          {row_of(xs, r * kProjectedSteps), xs.stride});
    }
  }
  // Computes the step at time t; xs begins with time `from`.
  void step(Index t, Index from, const View& out) const {
    const bool saves = tensors.gates.given();
    const RowsOf<T> states = saves ? step_rows<T>(s, tensors.states, e, t) : RowsOf<T>{};
    const RowsOf<T> gates = saves ? step_rows<T>(s, tensors.gates, e, t) : RowsOf<T>{};
    loops.project_state(w, {h.data, h.stride}, e.rows, hs);
    for (Index r = 0; r < e.rows; ++r) {
      T* const state = row_of(h, r);
      T* const to = at<T>(out, e.first + r, t) + e.direction * s.hidden * out.stride(2);
      if (saves) std::copy_n(state, s.hidden, row_of(states, r));
      if (lives(r, t)) {
        loops.gates_by.forward(row_of(xs, r * kProjectedSteps + t - from), row_of(hs, r), state,
                               s.hidden, state, saves ? row_of(gates, r) : nullptr);
        put<T>(state, 1, s.hidden, to, out.stride(2), Write::kOverwrite);
      } else {
        if (saves) std::fill_n(row_of(gates, r), 4 * s.hidden, T(0));
        clear(to, out.stride(2));
      }
    }
  }
  // Sets the results beyond the longest sequence of the task to 0.
  void clear_beyond_longest(const View& out) const {
    for (Index t = e.longest; t < s.T; ++t) {
      for (Index r = 0; r < e.rows; ++r) {
        if (tensors.gates.given()) {
          std::fill_n(row_of(step_rows<T>(s, tensors.states, e, t), r), s.hidden, T(0));
          std::fill_n(row_of(step_rows<T>(s, tensors.gates, e, t), r), 4 * s.hidden, T(0));
        }
        clear(at<T>(out, e.first + r, t) + e.direction * s.hidden * out.stride(2), out.stride(2));
      }
    }
  }

 private:
  void clear(T* to, Index stride) const {
    for (Index u = 0; u < s.hidden; ++u) to[u * stride] = T(0);
  }
};

template <class T>
void run_forward(const ForwardTask<T>& task, const ConstView& state, const GruOutputs& outputs) {
  const Entries& e = task.e;
  const Index H = task.s.hidden;
  for (Index r = 0; r < e.rows; ++r) {
    if (state.given()) {
      put<T>(at<const T>(state, e.direction, e.first + r), state.stride(2), H, row_of(task.h, r), 1,
             Write::kOverwrite);
    } else {
      std::fill_n(row_of(task.h, r), H, T(0));
    }
  }
  for (Index n = 0; n < e.longest; n += kProjectedSteps) {
    const Index steps = std::min(kProjectedSteps, e.longest - n);
    const Index from = std::min(time_of(e, n), time_of(e, n + steps - 1));
    task.project(from, from + steps);
    for (Index m = n; m < n + steps; ++m) {
      task.loops.stop();
      task.step(time_of(e, m), from, outputs.out);
    }
  }
  task.clear_beyond_longest(outputs.out);
  if (!outputs.state.given()) return;
  for (Index r = 0; r < e.rows; ++r) {
    put<T>(row_of(task.h, r), 1, H, at<T>(outputs.state, e.direction, e.first + r),
           outputs.state.stride(2), Write::kOverwrite);
  }
}

// Returns how many bytes the packed weights of all directions take in the call's shared memory.
template <class T>
std::size_t packed_bytes(const GruSequence& s) {
  if (s.packed != nullptr) return 0;
  const GruWeights<T> w(*s.parameters[0]);
  return static_cast<std::size_t>(s.directions) *
         (Arena::cost<T>(w.ih_size()) + Arena::cost<T>(w.hh_size()));
}

}  // namespace

template <class T>
void pack_gru(std::string_view function, const GruParameters& parameters, Tensor& ih, Tensor& hh,
              Context& context) {
  GruWeights<T> w(parameters);
  ih = Tensor(dtype_of<T>, {w.ih_size()});
  hh = Tensor(dtype_of<T>, {w.hh_size()});
  Call call(context, function, 0, 0);
  w.pack(call, kernels_in_use<T>(context, function), parameters, ih.template values<T>().data(),
         hh.template values<T>().data());
}
template void pack_gru<float>(std::string_view, const GruParameters&, Tensor&, Tensor&, Context&);
template void pack_gru<double>(std::string_view, const GruParameters&, Tensor&, Tensor&, Context&);

template <class T>
void gru_forward(const GruSequence& s, const GruTensors& tensors, const ConstView& state,
                 const GruOutputs& outputs, Context& context) {
  constexpr std::string_view kFunction = "Gru::forward";
  const Index H = s.hidden;
  const std::size_t per_worker = Arena::cost<T>(kGruRows * H) + Arena::cost<T>(kGruRows * 3 * H) +
                                 Arena::cost<T>(kGruRows * kProjectedSteps * 3 * H);
  Call call(context, kFunction, packed_bytes<T>(s), per_worker);
  const GruLoops<T> loops{kernels_in_use<T>(context, kFunction),
                          gru_kernels_in_use<T>(context, kFunction), call.stop_point()};
  GruWeights<T> weights[2] = {GruWeights<T>(*s.parameters[0]),
                              GruWeights<T>(*s.parameters[s.directions - 1])};
  for (Index direction = 0; direction < s.directions; ++direction) {
    GruWeights<T>& w = weights[direction];
    if (s.packed != nullptr) {
      w.ih = {3 * H, s.input, s.packed->ih[direction].template values<T>().data()};
      w.hh = {3 * H, H, s.packed->hh[direction].template values<T>().data()};
      continue;
    }
    T* const ih = call.shared().take<T>(w.ih_size()).data();
    T* const hh = call.shared().take<T>(w.hh_size()).data();
    w.pack(call, loops.by, *s.parameters[direction], ih, hh);
  }
  for_each_entries(call, s, [&](const Entries& e, Arena& arena) {
    const auto rows = [&](Index count, Index width) {
      return RowsOf<T>{arena.take<T>(count * width).data(), width};
    };
    run_forward(ForwardTask<T>{s, loops, weights[e.direction], tensors, e, rows(kGruRows, H),
                               rows(kGruRows * kProjectedSteps, 3 * H), rows(kGruRows, 3 * H)},
                state, outputs);
  });
}
template void gru_forward<float>(const GruSequence&, const GruTensors&, const ConstView&,
                                 const GruOutputs&, Context&);
template void gru_forward<double>(const GruSequence&, const GruTensors&, const ConstView&,
                                  const GruOutputs&, Context&);

// ---- backward -------------------------------------------------------------------------------

namespace {

// Computes the backward pass of run_forward, from the last step to the first; dh [rows,hidden] is
// the state's gradient.
template <class T>
void run_backward(const GruSequence& s, const GruLoops<T>& loops, const GruWeights<T>& w,
                  const Gru::Saved& saved, const GruOutputGradients& from, const Entries& e,
                  const View& dgates, const RowsOf<T>& dh) {
  const Index H = s.hidden;
  for (Index r = 0; r < e.rows; ++r) {
    std::fill_n(row_of(dh, r), H, T(0));
    if (!from.state.given()) continue;
    put<T>(at<const T>(from.state, e.direction, e.first + r), from.state.stride(2), H,
           row_of(dh, r), 1, Write::kOverwrite);
  }
  for (Index n = e.longest - 1; n >= 0; --n) {
    loops.stop();
    const Index t = time_of(e, n);
    const auto states = step_rows<const T>(s, saved.states.view(), e, t);
    const auto gates = step_rows<const T>(s, saved.gates.view(), e, t);
    const auto dgate_rows = step_rows<T>(s, dgates, e, t);
    for (Index r = 0; r < e.rows; ++r) {
      if (t >= s.lengths[e.first + r]) continue;
      if (from.out.given()) {
        put<T>(at<const T>(from.out, e.first + r, t) + e.direction * H * from.out.stride(2),
               from.out.stride(2), H, row_of(dh, r), 1, Write::kAccumulate);
      }
      loops.gates_by.backward(row_of(gates, r), row_of(states, r), row_of(dh, r), H,
                              row_of(dgate_rows, r), row_of(dh, r));
    }
    // Beyond a row's sequence its gate gradients are 0, so dh is unchanged.
    loops.add_state_gradient(w, {dgate_rows.data, dgate_rows.stride}, e.rows, dh);
  }
}

// Sets the rows of `steps`, [directions,B,T,width], beyond the ends of the entries' sequences to 0.
template <class T>
void clear_beyond(const GruSequence& s, const View& steps, const Entries& e) {
  const Index width = steps.size(-1);
  for (Index r = 0; r < e.rows; ++r) {
    const Index length = s.lengths[e.first + r];
    std::fill_n(row_of(step_rows<T>(s, steps, e, length), r), (s.T - length) * width, T(0));
  }
}

// Computes dx of batch entry b, the sum over the directions.
template <class T>
void entry_input_gradient(const GruSequence& s, const GruLoops<T>& loops, const GruWeights<T>* w,
                          const View& dgates, Index b, const GruInputGradients& to, Arena& arena) {
  const RowsOf<T> sums{arena.take<T>(kProjectedSteps * s.input).data(), s.input};
  const T* const all = dgates.as<T>();
  for (Index t = 0; t < s.T; t += kProjectedSteps) {
    loops.stop();
    const Index steps = std::min(kProjectedSteps, s.T - t);
    const Index live = std::clamp<Index>(s.lengths[b] - t, 0, steps);
    std::fill_n(sums.data, steps * s.input, T(0));
    for (Index direction = 0; direction < s.directions && live > 0; ++direction) {
      const Index width = 4 * s.hidden;
      const T* const rows = all + ((direction * s.B + b) * s.T + t) * width;
      loops.add_input_gradient(w[direction], {rows, width}, live, sums);
    }
    for (Index n = 0; n < steps; ++n) {
      put<T>(row_of(sums, n), 1, s.input, at<T>(to.x, b, t + n), to.x.stride(2), to.write);
    }
  }
}

}  // namespace

template <class T>
void gru_backward(const GruSequence& s, const Gru::Saved& saved, const GruOutputGradients& from,
                  const View& dgates, const GruInputGradients& to, Context& context) {
  constexpr std::string_view kFunction = "Gru::backward";
  const std::size_t per_worker =
      std::max(Arena::cost<T>(kGruRows * s.hidden), Arena::cost<T>(kProjectedSteps * s.input));
  Call call(context, kFunction, 0, per_worker);
  const GruLoops<T> loops{kernels_in_use<T>(context, kFunction),
                          gru_kernels_in_use<T>(context, kFunction), call.stop_point()};
  const GruWeights<T> w[2] = {GruWeights<T>(*s.parameters[0]),
                              GruWeights<T>(*s.parameters[s.directions - 1])};
  for_each_entries(call, s, [&](const Entries& e, Arena& arena) {
    clear_beyond<T>(s, dgates, e);
    const RowsOf<T> dh{arena.take<T>(e.rows * s.hidden).data(), s.hidden};
    run_backward(s, loops, w[e.direction], saved, from, e, dgates, dh);
    if (!to.state.given()) return;
    for (Index r = 0; r < e.rows; ++r) {
      put<T>(row_of(dh, r), 1, s.hidden, at<T>(to.state, e.direction, e.first + r),
             to.state.stride(2), to.write);
    }
  });
  if (!to.x.given()) return;
  call.for_each_task(
      s.B, [&](Index b, Arena& arena) { entry_input_gradient(s, loops, w, dgates, b, to, arena); });
}
template void gru_backward<float>(const GruSequence&, const Gru::Saved&, const GruOutputGradients&,
                                  const View&, const GruInputGradients&, Context&);
template void gru_backward<double>(const GruSequence&, const Gru::Saved&, const GruOutputGradients&,
                                   const View&, const GruInputGradients&, Context&);

}  // namespace qkv::layers
