// SPDX-License-Identifier: Apache-2.0
// Attention from C, and from languages that call C. The header is C11 and C++11. What a call
// computes is defined in docs/semantics.md, and the comments of qkv/attention.h, qkv/options.h and
// qkv/outputs.h describe each array; functions and fields have the names that C++ uses. Steps,
// caches, layers, user functions and arrays in device memory are for C++ only.
//
//   qkv_inputs inputs;
//   qkv_inputs_init(&inputs, sizeof inputs);
//   qkv_tensor_init(&inputs.q, q, QKV_FLOAT32, 4, (const int64_t[]){B, H, Tq, D});
//   ...
//   if (qkv_attention(&inputs, NULL, &outputs, NULL) != QKV_OK) puts(qkv_last_error());
//
// A struct that begins with `struct_size` may get more fields at its end in later versions. Its
// function ..._init takes sizeof the struct, and sets this size, the defaults of the fields and
// absent arrays. A call accepts the struct of an older header, and that of a newer one if all
// fields that this library does not know are zero. Other structs never change.
//
// Functions may be called from any thread. A context or a plan serves one call at a time, and only
// qkv_context_set_stop() may be called during it.
#ifndef QKV_C_H_
#define QKV_C_H_

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): the header is C
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#include <qkv/version.h>

// QKV_C_API marks what a shared library exports; its CMake target and pkg-config module define
// QKV_SHARED.
#if defined(QKV_SHARED)
#define QKV_C_API __attribute__((visibility("default")))
#else
#define QKV_C_API
#endif

#ifdef __cplusplus
#define QKV_C_NOEXCEPT noexcept
extern "C" {
#else
#define QKV_C_NOEXCEPT
#endif

// NOLINTBEGIN(readability-identifier-naming,modernize-use-using,modernize-redundant-void-arg)

// ---- version and errors ---------------------------------------------------------------------

// The version of the library that runs, for comparison with QKV_VERSION and QKV_VERSION_NUMBER, the
// version of the header: "0.1.0", and 10000 * major + 100 * minor + patch.
QKV_C_API const char* qkv_version(void) QKV_C_NOEXCEPT;
QKV_C_API int32_t qkv_version_number(void) QKV_C_NOEXCEPT;

typedef enum qkv_status {
  QKV_OK = 0,
  QKV_INVALID_ARGUMENT = 1,  // no output was touched
  QKV_INVALID_TYPE = 2,      // an argument has the wrong dtype; no output was touched
  QKV_OUT_OF_MEMORY = 3,     // outputs hold unspecified numbers
  QKV_STOPPED = 4,           // by qkv_context_set_stop(); outputs hold unspecified numbers
  QKV_INTERNAL_ERROR = 5     // a fault of the library; outputs hold unspecified numbers
} qkv_status;

// The name of a status, "QKV_OK"; "unknown" for other numbers.
QKV_C_API const char* qkv_status_name(qkv_status status) QKV_C_NOEXCEPT;

// The message of this thread's last call that did not return QKV_OK, one line of UTF-8: function,
// argument, rule, and the value that was passed. "" if there was none. The text stays until the
// next failure in this thread.
QKV_C_API const char* qkv_last_error(void) QKV_C_NOEXCEPT;

// ---- arrays ---------------------------------------------------------------------------------

typedef enum qkv_dtype {
  QKV_NONE = 0,  // of an absent array
  QKV_FLOAT64 = 1,
  QKV_FLOAT32 = 2,
  QKV_BFLOAT16 = 3,
  QKV_FLOAT16 = 4,
  QKV_BOOL = 5,  // one byte; every byte but 0 is true
  QKV_INT8 = 6,
  QKV_INT16 = 7,
  QKV_INT32 = 8,
  QKV_INT64 = 9,
  QKV_UINT8 = 10,
  QKV_UINT16 = 11,
  QKV_UINT32 = 12,
  QKV_UINT64 = 13,
  QKV_Q8 = 14  // blocks of 34 bytes, for k and v; sizes and strides count blocks (qkv/q8.h)
} qkv_dtype;

#define QKV_MAX_RANK 8

// An array in the caller's memory; inputs are only read. Strides count elements, not bytes, and may
// be 0 (in inputs) or negative: element (i, j) is data[i * strides[0] + j * strides[1]]. An array
// whose bytes are all zero is absent: an argument that is not given, or a result that is not
// wanted. Sizes and strides from `rank` on are not read.
typedef struct qkv_tensor {
  void* data;     // aligned for its elements; may be null if there are none
  int32_t dtype;  // qkv_dtype
  int32_t rank;   // 0 to QKV_MAX_RANK
  int64_t sizes[QKV_MAX_RANK];
  int64_t strides[QKV_MAX_RANK];
} qkv_tensor;

// Describes an array in C order without gaps. `sizes` has `rank` numbers.
QKV_C_API qkv_status qkv_tensor_init(qkv_tensor* tensor, void* data, int32_t dtype, int32_t rank,
                                     const int64_t* sizes) QKV_C_NOEXCEPT;

// ---- inputs ---------------------------------------------------------------------------------

// The place of a call's arrays in longer sequences (Shard in qkv/options.h).
typedef struct qkv_shard {
  int32_t given;  // 1: the call is a part; 0: the other fields are 0
  int32_t reserved;
  int64_t first_query;
  int64_t queries;
  int64_t first_key;
  int64_t keys;
} qkv_shard;

typedef struct qkv_inputs {
  size_t struct_size;
  qkv_tensor q;  // [B,H,Tq,D]
  qkv_tensor k;  // [B,G,Tk,D]
  qkv_tensor v;  // [B,G,Tk,E]
  // Packed sequences: [B+1].
  qkv_tensor cu_seqlens_q;
  qkv_tensor cu_seqlens_k;
  // Keys in pages: [B,pages] and [B].
  qkv_tensor block_tables;
  qkv_tensor context_lens;
  qkv_shard shard;
} qkv_inputs;

QKV_C_API qkv_status qkv_inputs_init(qkv_inputs* inputs, size_t struct_size) QKV_C_NOEXCEPT;

// ---- options --------------------------------------------------------------------------------

typedef enum qkv_score {
  QKV_SCALED_DOT = 0,
  QKV_DOT = 1,
  QKV_BILINEAR = 2,  // needs bilinear.w
  QKV_ADDITIVE = 3,  // needs additive.wq, .wk and .v
  QKV_COSINE = 4
} qkv_score;

// The diagonal of causal masks, windows, ALiBi and rotary positions: j = i + o.
typedef enum qkv_diagonal_kind {
  QKV_BOTTOM_RIGHT = 0,  // o = Tk - Tq
  QKV_TOP_LEFT = 1,      // o = 0
  QKV_OFFSET = 2,        // o = offset
  QKV_OFFSETS = 3        // o = offsets[b]
} qkv_diagonal_kind;

typedef enum qkv_rotary_pairs {
  QKV_NO_ROTARY = 0,
  QKV_NEIGHBOURS = 1,  // values 2m and 2m+1 of a row
  QKV_HALVES = 2       // values m and m + width/2
} qkv_rotary_pairs;

typedef struct qkv_qk_norm {
  int32_t given;  // 1: rows of q and k are normalised
  int32_t reserved;
  double eps;    // 1e-6 by default
  qkv_tensor q;  // gains; absent: 1
  qkv_tensor k;
} qkv_qk_norm;

typedef struct qkv_rotary {
  int32_t pairs;  // qkv_rotary_pairs
  int32_t reserved;
  double base;    // 10000 by default
  int64_t width;  // 0: all values of a row
  qkv_tensor frequencies;
  qkv_tensor q_positions;
  qkv_tensor k_positions;
} qkv_rotary;

typedef struct qkv_bilinear {
  qkv_tensor w;
} qkv_bilinear;

typedef struct qkv_additive {
  qkv_tensor wq;
  qkv_tensor wk;
  qkv_tensor v;
  qkv_tensor b;  // may be absent
} qkv_additive;

typedef struct qkv_diagonal {
  int32_t kind;  // qkv_diagonal_kind
  int32_t reserved;
  int64_t offset;      // of QKV_OFFSET
  qkv_tensor offsets;  // of QKV_OFFSETS: [B], integers
} qkv_diagonal;

// Allows i + o - left <= j <= i + o + right; -1, the default, is unbounded.
typedef struct qkv_window {
  int64_t left;
  int64_t right;
} qkv_window;

typedef struct qkv_dropout {
  double p;
  uint64_t seed;       // required if p > 0
  int32_t seed_given;  // 1: seed is set
  int32_t reserved;
} qkv_dropout;

// The options of a call. All flags are 0 or 1, and `reserved` is 0. A field without effect, such as
// a parameter of another score, is an error, except for eps, base, a seed and a diagonal.
typedef struct qkv_options {
  size_t struct_size;
  qkv_qk_norm qk_norm;
  qkv_rotary rotary;
  int32_t score;        // qkv_score
  int32_t scale_given;  // 1: scale is set; 0: 1/sqrt(D) for QKV_SCALED_DOT, else 1
  double scale;
  qkv_bilinear bilinear;
  qkv_additive additive;
  double softcap;   // 0: off
  qkv_tensor bias;  // broadcastable to the weights
  qkv_diagonal diagonal;
  qkv_tensor alibi;  // slopes [H] or [B,H]
  // Masks: a pair must be allowed by all.
  int32_t causal;  // 1: j <= i + o
  int32_t reserved;
  qkv_window window;
  qkv_tensor keep;         // not 0: the pair may attend; broadcastable to the weights
  qkv_tensor padding;      // [B,Tk], not 0: padding
  qkv_tensor key_lengths;  // [B] or [B,Tq]
  qkv_tensor sinks;        // [H]
  qkv_dropout dropout;
} qkv_options;

QKV_C_API qkv_status qkv_options_init(qkv_options* options, size_t struct_size) QKV_C_NOEXCEPT;

// ---- results --------------------------------------------------------------------------------

// A matrix with a row for each query, or for each of the queries listed in `rows` [R] (integers).
typedef struct qkv_rows {
  qkv_tensor rows;
  qkv_tensor matrix;
} qkv_rows;

typedef struct qkv_column_sums {
  qkv_tensor rows;  // absent: all queries
  qkv_tensor sums;
} qkv_column_sums;

typedef struct qkv_top {
  int64_t count;
  qkv_tensor weights;
  qkv_tensor keys;  // QKV_INT32 or QKV_INT64
} qkv_top;

// An array that is given requests a result. `out` has q's dtype, others are QKV_FLOAT64 for
// QKV_FLOAT64 inputs, else QKV_FLOAT32.
typedef struct qkv_outputs {
  size_t struct_size;
  qkv_tensor out;      // [B,H,Tq,E]
  qkv_tensor lse;      // [B,H,Tq]
  qkv_tensor row_max;  // [B,H,Tq]
  qkv_tensor entropy;  // [B,H,Tq]
  qkv_column_sums column_sums;
  qkv_tensor value_sums;  // [B,H,Tk]
  qkv_tensor pooled;      // [B,H,m,n]
  qkv_top top;            // [B,H,Tq,count]
  qkv_rows weights;       // [B,H,Tq or R,Tk]
  qkv_rows dropped_weights;
  qkv_rows raw_scores;
  qkv_rows capped_scores;
  qkv_rows masked_scores;
} qkv_outputs;

QKV_C_API qkv_status qkv_outputs_init(qkv_outputs* outputs, size_t struct_size) QKV_C_NOEXCEPT;

typedef struct qkv_shape {
  int64_t rank;
  int64_t sizes[QKV_MAX_RANK];
} qkv_shape;

// The shapes of a call's results (ResultShapes in qkv/outputs.h).
typedef struct qkv_result_shapes {
  size_t struct_size;
  qkv_shape out;     // rank 0 if v is absent
  qkv_shape rows;    // of lse, row_max, entropy
  qkv_shape keys;    // of column_sums and value_sums
  qkv_shape matrix;  // of weights and scores; rank 0 for packed sequences
} qkv_result_shapes;

QKV_C_API qkv_status qkv_result_shapes_init(qkv_result_shapes* shapes,
                                            size_t struct_size) QKV_C_NOEXCEPT;
QKV_C_API qkv_status qkv_result_shapes_of(const qkv_inputs* inputs,
                                          qkv_result_shapes* shapes) QKV_C_NOEXCEPT;

// ---- contexts -------------------------------------------------------------------------------

// Threads, the memory that calls reuse, and a stop flag.
typedef struct qkv_context qkv_context;

// Makes a context of `threads` threads, the calling one included; 0 is one per processor. A failed
// call sets *context to null.
QKV_C_API qkv_status qkv_context_create(int32_t threads, qkv_context** context) QKV_C_NOEXCEPT;
// Null is ignored. Plans that were made with the context remain valid.
QKV_C_API void qkv_context_destroy(qkv_context* context) QKV_C_NOEXCEPT;
// Sets the stop flag: with 1, the running call and all later ones return QKV_STOPPED until the flag
// is 0. Any thread and signal handlers may call this function. Null is ignored.
QKV_C_API void qkv_context_set_stop(qkv_context* context, int32_t stop) QKV_C_NOEXCEPT;
// Makes calls use the implementation of this name ("reference", "dot/avx2") or fail; "" ends this.
// An unknown name is an error of the call.
QKV_C_API qkv_status qkv_context_force_path(qkv_context* context, const char* name) QKV_C_NOEXCEPT;
// The bytes of scratch memory held for later calls, which qkv_context_release_scratch() frees. A
// null context has none.
QKV_C_API size_t qkv_context_scratch_bytes(const qkv_context* context) QKV_C_NOEXCEPT;
QKV_C_API void qkv_context_release_scratch(qkv_context* context) QKV_C_NOEXCEPT;

// ---- calls ----------------------------------------------------------------------------------

// `options` may be null: the defaults. Without a context (null) a call runs on the calling thread.
QKV_C_API qkv_status qkv_attention(const qkv_inputs* inputs, const qkv_options* options,
                                   const qkv_outputs* outputs, qkv_context* context) QKV_C_NOEXCEPT;

// Merges results of the same queries for different keys into `out` and `lse`.
QKV_C_API qkv_status qkv_merge(const qkv_tensor* out, const qkv_tensor* lse, const qkv_tensor* out2,
                               const qkv_tensor* lse2) QKV_C_NOEXCEPT;

// Results of the forward pass: `out` only if output_gradients.out is given.
typedef struct qkv_saved {
  size_t struct_size;
  qkv_tensor out;
  qkv_tensor lse;
} qkv_saved;

QKV_C_API qkv_status qkv_saved_init(qkv_saved* saved, size_t struct_size) QKV_C_NOEXCEPT;

// Gradients of the loss with respect to the results; absent ones are zero.
typedef struct qkv_output_gradients {
  size_t struct_size;
  qkv_tensor out;
  qkv_tensor lse;
  qkv_rows weights;
} qkv_output_gradients;

QKV_C_API qkv_status qkv_output_gradients_init(qkv_output_gradients* gradients,
                                               size_t struct_size) QKV_C_NOEXCEPT;

typedef struct qkv_qk_norm_gradients {
  qkv_tensor q;
  qkv_tensor k;
} qkv_qk_norm_gradients;

// Gradients of bilinear.w, or of the parameters of the additive score.
typedef struct qkv_score_gradients {
  qkv_tensor w;
  qkv_tensor wq;
  qkv_tensor wk;
  qkv_tensor v;
  qkv_tensor b;
} qkv_score_gradients;

// An array that is given requests a gradient. It has the shape and dtype of its source.
typedef struct qkv_input_gradients {
  size_t struct_size;
  qkv_tensor q;
  qkv_tensor k;
  qkv_tensor v;
  qkv_qk_norm_gradients qk_norm;
  qkv_score_gradients score;
  qkv_tensor bias;
  qkv_tensor alibi;
  qkv_tensor sinks;
  int32_t accumulate;  // 1: gradients are added to the arrays; 0: they overwrite the arrays
  int32_t reserved;
} qkv_input_gradients;

QKV_C_API qkv_status qkv_input_gradients_init(qkv_input_gradients* gradients,
                                              size_t struct_size) QKV_C_NOEXCEPT;

// Inputs and options are those of the forward pass.
QKV_C_API qkv_status qkv_attention_backward(const qkv_inputs* inputs, const qkv_options* options,
                                            const qkv_saved* saved,
                                            const qkv_output_gradients* output_gradients,
                                            const qkv_input_gradients* input_gradients,
                                            qkv_context* context) QKV_C_NOEXCEPT;

// ---- plans ----------------------------------------------------------------------------------

// Shapes, dtypes and options that are checked once, for many calls. The arrays of the options are
// read at every call and must outlive the plan; the structs need not.
typedef struct qkv_plan qkv_plan;

// A failed call sets *plan to null.
QKV_C_API qkv_status qkv_plan_create(const qkv_inputs* inputs, const qkv_options* options,
                                     qkv_context* context, qkv_plan** plan) QKV_C_NOEXCEPT;
// Null is ignored.
QKV_C_API void qkv_plan_destroy(qkv_plan* plan) QKV_C_NOEXCEPT;
QKV_C_API qkv_status qkv_plan_run(qkv_plan* plan, const qkv_inputs* inputs,
                                  const qkv_outputs* outputs) QKV_C_NOEXCEPT;
QKV_C_API qkv_status qkv_plan_backward(qkv_plan* plan, const qkv_inputs* inputs,
                                       const qkv_saved* saved,
                                       const qkv_output_gradients* output_gradients,
                                       const qkv_input_gradients* input_gradients) QKV_C_NOEXCEPT;
// The names of the implementations, "dot/avx2"; "" for null, and if there is no backward pass. The
// strings are never freed.
QKV_C_API const char* qkv_plan_path(const qkv_plan* plan) QKV_C_NOEXCEPT;
QKV_C_API const char* qkv_plan_backward_path(const qkv_plan* plan) QKV_C_NOEXCEPT;
// The bytes of the context's memory that qkv_plan_run() and qkv_plan_backward() need; 0 for null.
QKV_C_API size_t qkv_plan_scratch_bytes(const qkv_plan* plan) QKV_C_NOEXCEPT;
QKV_C_API size_t qkv_plan_backward_scratch_bytes(const qkv_plan* plan) QKV_C_NOEXCEPT;

// NOLINTEND(readability-identifier-naming,modernize-use-using,modernize-redundant-void-arg)

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QKV_C_H_
