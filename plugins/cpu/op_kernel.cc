#include "geometry.h"
#include "op_kernel.h"

#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "ort/ort_tensor.h"
#include "scratch.h"

namespace kvedge {
namespace {

using ort::Complaint;
using ort::ElementType;
using ort::kAny;
using ort::kFloat;
using ort::kInt32;
using ort::Tensor;

constexpr const char* kName = "PagedAttention";

kvedge_shape read_attributes(const ort::Api& api, const ort::KernelInfo* info) {
  kvedge_shape shape = {};
  shape.heads = ort::integer_attribute(api, info, kName, "heads");
  shape.kv_heads = ort::integer_attribute(api, info, kName, "kv_heads");
  shape.head_dim = ort::integer_attribute(api, info, kName, "head_dim");
  shape.page = ort::integer_attribute(api, info, kName, "page");
  shape.sinks = ort::integer_attribute(api, info, kName, "sinks");
  shape.recent = ort::integer_attribute(api, info, kName, "recent");
  shape.window = ort::integer_attribute(api, info, kName, "window");
  shape.k_bits = ort::integer_attribute(api, info, kName, "k_bits");
  shape.v_bits = ort::integer_attribute(api, info, kName, "v_bits");
  shape.float_codes = ort::integer_attribute(api, info, kName, "float_codes");
  shape.v_unbiased = ort::integer_attribute(api, info, kName, "v_unbiased");
  shape.rotary_interleaved = ort::integer_attribute(api, info, kName, "rotary_interleaved");
  shape.scale = ort::float_attribute(api, info, kName, "scale");
  shape.softcap = ort::float_attribute(api, info, kName, "softcap");
  return shape;
}

constexpr const char* kInputNames[kInputs] = {
    "q", "k", "v", "cos", "sin", "hot", "packed", "hot_table", "packed_table", "context", "num_new", "sink_cos", "sink_sin",
    "bias_page", "bias_freqs", "bias_channels"};

struct Inputs {
  Tensor at[kInputs];

  Inputs(const ort::Api& api, const ort::KernelContext* context) {
    for (size_t i = 0; i < kInputs; ++i) at[i] = ort::read_input(api, context, i, kName, kInputNames[i]);
  }
  const Tensor& operator[](Input input) const { return at[input]; }
};

int32_t size32(const Tensor& tensor, size_t axis) {
  const int64_t size = tensor.dims[axis];
  if (size > std::numeric_limits<int32_t>::max()) {
    ort::complain(tensor, "expected sizes within 32 bits, got " + tensor.describe());
  }
  return static_cast<int32_t>(size);
}

void both_or_neither(const Tensor& a, const Tensor& b) {
  if (a.present == b.present) return;
  const Tensor& missing = a.present ? b : a;
  ort::complain(missing, std::string("expected a tensor, because ") + (a.present ? a.name : b.name) +
                             " is given, got nothing");
}

void check_packed(const Inputs& in, kvedge_shape* shape) {
  if (!packs(*shape)) shape->k_bits = shape->v_bits = 0;
  both_or_neither(in[kPacked], in[kPackedTable]);
  if ((shape->k_bits > 0) != in[kPacked].present) {
    const char* wanted = in[kPacked].present ? "none, because this layer does not pack" : "a tensor, because this layer packs";
    ort::complain(in[kPacked], "expected " + std::string(wanted) + " (by k_bits, window and recent), got " +
                                   in[kPacked].describe());
  }
  if (!in[kPacked].present) return;
  const int64_t words =
      kvedge_page_words(shape->kv_heads, shape->head_dim, shape->page, shape->k_bits, shape->v_bits);
  ort::expect(in[kPacked], kInt32, {kAny, words}, "[packed_pages, words]");
  ort::expect(in[kPackedTable], kInt32, {shape->batch, kAny}, "[B, packed_slots]");
  shape->packed_pages = size32(in[kPacked], 0);
  shape->packed_slots = size32(in[kPackedTable], 1);
}

// cos and sin, of the embedding or of the turn towards the sinks: one number of pairs.
void check_turn(const Inputs& in, Input cos, Input sin, kvedge_shape* shape) {
  both_or_neither(in[cos], in[sin]);
  if (!in[cos].present) return;
  const int64_t pairs = shape->rotary_pairs > 0 ? shape->rotary_pairs : kAny;
  ort::expect(in[cos], kFloat, {shape->batch, shape->new_tokens, pairs}, "[B, N, pairs]");
  shape->rotary_pairs = size32(in[cos], 2);
  ort::expect(in[sin], kFloat, {shape->batch, shape->new_tokens, shape->rotary_pairs}, "[B, N, pairs]");
}

// [B, N, width], its last axis maybe as [heads, head_dim].
void check_projected(const Tensor& tensor, const kvedge_shape& shape, int64_t heads, const char* letters) {
  if (tensor.rank == 4) return ort::expect(tensor, kFloat, {shape.batch, shape.new_tokens, heads, shape.head_dim}, letters);
  ort::expect(tensor, kFloat, {shape.batch, shape.new_tokens, heads * shape.head_dim}, letters);
}

void check_bias(const Inputs& in, kvedge_shape* shape) {
  both_or_neither(in[kBiasPage], in[kBiasFreqs]);
  both_or_neither(in[kBiasPage], in[kBiasChannels]);
  if (!in[kBiasPage].present) return;
  ort::expect(in[kBiasFreqs], kFloat, {kAny}, "[F]");
  shape->bias_pairs = size32(in[kBiasFreqs], 0);
  const int64_t rows = 2 * int64_t(shape->bias_pairs);
  ort::expect(in[kBiasPage], kFloat, {shape->kv_heads, rows, shape->page}, "[kv_heads, 2F, page]");
  ort::expect(in[kBiasChannels], kInt32, {rows}, "[2F]");
}

// Compares every tensor with the attributes and with q, and completes the shape.
kvedge_shape complete_shape(const Inputs& in, kvedge_shape shape) {
  const Tensor& q = in[kQ];
  if (q.rank < 3) ort::complain(q, "expected [B, N, heads * head_dim], got " + q.describe());
  shape.batch = size32(q, 0);
  shape.new_tokens = size32(q, 1);
  both_or_neither(in[kK], in[kV]);
  if (in[kK].present) {
    check_projected(q, shape, shape.heads, "[B, N, heads * head_dim]");
    for (Input i : {kK, kV}) check_projected(in[i], shape, shape.kv_heads, "[B, N, kv_heads * head_dim]");
  } else {
    check_projected(q, shape, shape.heads + 2 * int64_t(shape.kv_heads), "[B, N, (heads + 2 kv_heads) * head_dim]");
  }
  ort::expect(in[kHot], shape.hot_is_half ? ort::kFloat16 : kFloat,
              {kAny, 2, shape.kv_heads, shape.page, shape.head_dim}, "[hot_pages, 2, kv_heads, page, head_dim]");
  ort::expect(in[kHotTable], kInt32, {shape.batch, kAny}, "[B, hot_slots]");
  shape.hot_pages = size32(in[kHot], 0);
  shape.hot_slots = size32(in[kHotTable], 1);
  for (Input i : {kContext, kNumNew}) ort::expect(in[i], kInt32, {shape.batch}, "[B]");
  check_packed(in, &shape);
  check_turn(in, kCos, kSin, &shape);
  check_turn(in, kSinkCos, kSinkSin, &shape);
  check_bias(in, &shape);
  return shape;
}

// The caller binds a pool's input and output to one buffer; where it does not, the output starts as a copy.
void* carry_pool(const Tensor& from, const Tensor& to) {
  if (!to.present) {
    throw Complaint{"PagedAttention: " + std::string(to.name) +
                    ": expected an output, because the op writes to " + from.name +
                    ", got nothing; give the node this output"};
  }
  if (from.data != to.data && from.bytes() > 0) std::memcpy(to.data, from.data, from.bytes());
  return to.data;
}

kvedge_step read_step(const Inputs& in) {
  kvedge_step step = {};
  step.hot = in[kHot].data;
  step.packed = in[kPacked].as<int32_t>();
  step.hot_table = in[kHotTable].as<const int32_t>();
  step.packed_table = in[kPackedTable].as<const int32_t>();
  step.context = in[kContext].as<const int32_t>();
  step.num_new = in[kNumNew].as<const int32_t>();
  step.sink_cos = in[kSinkCos].as<const float>();
  step.sink_sin = in[kSinkSin].as<const float>();
  step.bias_page = in[kBiasPage].as<const float>();
  step.bias_freqs = in[kBiasFreqs].as<const float>();
  step.bias_channels = in[kBiasChannels].as<const int32_t>();
  return step;
}

thread_local Aligned<float> prepared, partial;

class Step {
 public:
  Step(const ort::Api& api, ort::KernelContext* context, kvedge_shape attributes)
      : api_(api),
        context_(context),
        in_(api, context),
        shape_(complete_shape(in_, attributes)),
        step_(read_step(in_)) {}

  void run() {
    make_outputs();
    check();
    carry_pools();
    prepare();
    in_parallel<kvedge_seal_task>(kvedge_seal_tasks(&shape_, &step_));
    attend();
    kvedge_append(&shape_, &step_);
  }

 private:
  void make_outputs() {
    const kvedge_shape& s = shape_;
    step_.out = output(kOut, "out", kFloat, {s.batch, s.new_tokens, int64_t(s.heads) * s.head_dim}).as<float>();
    step_.pages_read = output(kPagesRead, "pages_read", kInt32, {s.batch}).as<int32_t>();
    hot_out_ = output(kHotOut, "hot_out", in_[kHot].type, {s.hot_pages, 2, s.kv_heads, s.page, s.head_dim});
    if (in_[kPacked].present) {
      packed_out_ = output(kPackedOut, "packed_out", kInt32, {s.packed_pages, in_[kPacked].dims[1]});
    }
  }

  Tensor output(Output index, const char* name, ElementType type, std::initializer_list<int64_t> dims) {
    return ort::make_output(api_, context_, index, name, type, dims);
  }

  // Before anything is written, so that a refused step leaves the pools as they were.
  void check() const {
    char message[512] = "";
    if (kvedge_check(&shape_, &step_, message, sizeof(message)) != 0) throw Complaint{message};
  }

  void prepare() {
    const kvedge_shape& s = shape_;
    const int64_t token = int64_t(s.head_dim) * s.batch * s.new_tokens;
    float* q = grown(prepared, (s.heads + 2 * int64_t(s.kv_heads)) * token);
    float* k = q + s.heads * token;
    float* v = k + s.kv_heads * token;
    step_.q = q, step_.k = k, step_.v = v;
    const auto floats = [this](Input input) { return in_[input].as<const float>(); };
    const kvedge_projected from = {floats(kQ), floats(kK), floats(kV), floats(kCos), floats(kSin)};
    ort::in_parallel(api_, context_, kvedge_prepare_tasks(&s),
                     [&](int64_t task) { kvedge_prepare_task(&s, &from, q, k, v, task); });
  }

  void attend() {
    const int64_t tasks = kvedge_attend_tasks(&shape_, &step_);
    step_.partial = grown(partial, kvedge_attend_scratch(&shape_, tasks));
    in_parallel<kvedge_attend_task>(tasks, tasks);
    kvedge_attend_finish(&shape_, &step_);
  }

  void carry_pools() {
    step_.hot = carry_pool(in_[kHot], hot_out_);
    if (in_[kPacked].present) step_.packed = static_cast<int32_t*>(carry_pool(in_[kPacked], packed_out_));
  }

  template <void (*Task)(const kvedge_shape*, const kvedge_step*, int64_t)>
  void in_parallel(int64_t tasks, int64_t batches = 0) {
    ort::in_parallel(api_, context_, tasks, [this](int64_t i) { Task(&shape_, &step_, i); }, batches);
  }

  const ort::Api& api_;
  ort::KernelContext* context_;
  Inputs in_;
  kvedge_shape shape_;
  kvedge_step step_;
  Tensor hot_out_;
  Tensor packed_out_;
};

}  // namespace

OpKernel::OpKernel(ort::Api api, const ort::KernelInfo* info, ElementType hot_type)
    : api_(api), attributes_(read_attributes(api, info)) {
  attributes_.hot_is_half = hot_type == ort::kFloat16;
}

void OpKernel::compute(ort::KernelContext* context) const { Step(api_, context, attributes_).run(); }

}  // namespace kvedge
