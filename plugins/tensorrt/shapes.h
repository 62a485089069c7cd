// TensorRT's types and shapes of a layer's tensors.
#ifndef KVEDGE_TENSORRT_SHAPES_H
#define KVEDGE_TENSORRT_SHAPES_H

#include <NvInfer.h>

#include <string>
#include <vector>

#include "launch/shapes.h"

namespace kvedge::trt {

using namespace launch;

nvinfer1::DataType data_type_of(const Layer& layer, Argument tensor);
std::string text_of(nvinfer1::DataType type);

Shape shape_of(const nvinfer1::Dims& dims);

}  // namespace kvedge::trt
#endif
