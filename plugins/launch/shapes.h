// Types and shapes of a layer's tensors.
#ifndef KVEDGE_LAUNCH_SHAPES_H
#define KVEDGE_LAUNCH_SHAPES_H

#include <vector>

#include "plan.h"

namespace kvedge::launch {

using Shape = std::vector<int64_t>;

// A size that is not known yet, or may be any.
constexpr int64_t kAny = -1;

enum class Type { kFloat32, kFloat16, kInt32 };

const char* name_of(Type type);

Type type_of(const Layer& layer, Argument tensor);

// What a tensor must have in a step of so many rows and new tokens.
Shape shape_of(const Layer& layer, Argument tensor, int64_t batch, int64_t tokens);

// Sizes of a step whose inputs have these shapes.
StepSizes sizes_of(const Layer& layer, const std::vector<Shape>& inputs);

// Throws Failure where the number of tensors is another one, or a shape does not fit: inputs, then, where they are
// given, outputs.
void check_count(const Layer& layer, size_t inputs, size_t outputs);
void check_shapes(const Layer& layer, const std::vector<Shape>& tensors);

}  // namespace kvedge::launch
#endif
