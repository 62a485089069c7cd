// Types and shapes of a layer's tensors.
#ifndef KVEDGE_TENSORRT_SHAPES_H
#define KVEDGE_TENSORRT_SHAPES_H

#include <NvInfer.h>

#include <vector>

#include "plan.h"

namespace kvedge::trt {

nvinfer1::DataType type_of(const Layer& layer, Argument tensor);

// Sizes of a step whose inputs have these shapes.
StepSizes sizes_of(const Layer& layer, const std::vector<nvinfer1::Dims>& inputs);

// Throws Failure where the number of tensors is another one, or a shape does not fit: inputs, then outputs, -1 for
// sizes that are not known yet.
void check_count(const Layer& layer, int32_t inputs, int32_t outputs);
void check_shapes(const Layer& layer, const std::vector<nvinfer1::Dims>& tensors);

}  // namespace kvedge::trt
#endif
