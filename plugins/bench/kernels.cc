// The candidates, built once per instruction set: the build defines KVEDGE_ISA, the namespace.
#include "kernels.h"

#include "by_token.h"
#include "planes.h"
#include "products.h"
#include "words.h"

#define KVEDGE_NAME_OF(x) #x
#define KVEDGE_NAME(x) KVEDGE_NAME_OF(x)

namespace kvedge::bench::KVEDGE_ISA {
namespace {

bool usable() {
#if defined(__AVX512VBMI__)
  return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
#elif defined(__AVXVNNI__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avxvnni");
#else
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
}

template <class FloatBlock, class ByteBlock>
constexpr Kernel packed(const char* name, Order order) {
  return {name, order, FloatBlock::kBits, true, true,
          prepare<typename FloatBlock::FloatLevels>, prepare<typename ByteBlock::ByteLevels>,
          float_product<FloatBlock>, expand<FloatBlock>,
          integer_product<ByteBlock, true>, integer_product<ByteBlock, false>};
}
template <int BITS>
constexpr Kernel tree() {
  return {"A tree", Order::kPlanes, BITS, true, true, prepare<PlainLevels>, nullptr,
          nullptr, expand_by_selection<BITS>, nullptr, nullptr};
}
template <int BITS>
constexpr Kernel rows() {
  return {"D by token", Order::kRows, BITS, true, false, prepare<FloatTable<BITS>>, prepare<ByteTable<BITS>>,
          row_float_product<BITS>, nullptr, row_integer_product<BITS>, nullptr};
}
// Eight bits times 63 in fours do not fit 16 bits, so integers need VNNI there.
constexpr Kernel eight_bits() {
  Kernel kernel = packed<NibbleBlock<8>, NibbleBlock<8>>("C nibbles", Order::kNibbles);
  if (kBytesMax == 63) kernel.integer_keys = kernel.integer_values = nullptr;
  return kernel;
}
template <class T>
constexpr Kernel exact(const char* name, Order order, bool keys) {
  return {name, order, 0, keys, !keys, prepare<typename ExactBlock<T>::FloatLevels>, nullptr,
          keys ? exact_key_product<T> : float_product<ExactBlock<T>>,
          keys ? transpose_keys<T> : expand<ExactBlock<T>>, nullptr, nullptr};
}

const Kernel kKernels[] = {
    exact<float>("fp32", Order::kFloat, true),
    exact<float>("fp32", Order::kFloat, false),
    exact<uint16_t>("fp16", Order::kHalf, true),
    exact<uint16_t>("fp16", Order::kHalf, false),
#define KVEDGE_CANDIDATES(bits)                                                                          \
  tree<bits>(), packed<PlaneFloats<bits>, PlaneBytes<bits>>("A planes", Order::kPlanes),                \
      packed<QuadFloats<bits>, QuadBytes<bits>>("B quads", Order::kQuads),                               \
      packed<NibbleBlock<bits>, NibbleBlock<bits>>("C nibbles", Order::kNibbles), rows<bits>()
    KVEDGE_CANDIDATES(2),
    KVEDGE_CANDIDATES(3),
    packed<TripleBlock, TripleBlock>("E triples", Order::kTriples),
    KVEDGE_CANDIDATES(4),
    eight_bits(),
};

}  // namespace

extern const Isa kIsa;
const Isa kIsa = {KVEDGE_NAME(KVEDGE_ISA), usable, kKernels, int(sizeof kKernels / sizeof *kKernels),
                  kBytesMax, kBytesMax, 2 * kBytesMax + 1, tile_product};

}  // namespace kvedge::bench::KVEDGE_ISA
