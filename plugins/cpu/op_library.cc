// What ONNX Runtime loads: registers the operators of the domain kvedge.
#include "linear_op.h"
#include "loops.h"
#include "op_kernel.h"
#include "ort/ort_op.h"

namespace kvedge {
namespace {

// One for each type of hot pool.
constexpr ort::CustomOp kOps[] = {
    ort::describe<PagedAttention<ort::kFloat>>(),
    ort::describe<PagedAttention<ort::kFloat16>>(),
    ort::describe<BlockLinear>(),
    ort::describe<BlockGated>(),
    ort::describe<BlockEmbedding>(),
};

// Sessions keep pointing at the domain, so the one of the process is made once and never released.
ort::CustomOpDomain* shared_domain(const ort::Api& api) {
  static ort::CustomOpDomain* const domain = [&api] {
    ort::CustomOpDomain* made = nullptr;
    ort::require(api.create_domain("kvedge", &made));
    for (const ort::CustomOp& op : kOps) ort::require(api.add_op(made, &op));
    return made;
  }();
  return domain;
}

}  // namespace
}  // namespace kvedge

extern "C" KVEDGE_API kvedge::ort::Status* RegisterCustomOps(kvedge::ort::SessionOptions* options,
                                                              const kvedge::ort::ApiBase* base) {
  using namespace kvedge;
  return ort::with_api(base, [&](const ort::Api& api) {
    if (loops_error() != nullptr) throw ort::Complaint{loops_error()};
    ort::require(api.add_domain(options, shared_domain(api)));
  });
}
