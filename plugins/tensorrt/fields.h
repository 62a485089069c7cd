// The plugin's fields: a layer as TensorRT's parser gives it, and as an engine keeps it.
#ifndef KVEDGE_TENSORRT_FIELDS_H
#define KVEDGE_TENSORRT_FIELDS_H

#include <NvInfer.h>

#include <memory>
#include <vector>

#include "launch/layer.h"

namespace kvedge::trt {

using namespace launch;

// Throws Failure where a field is missing or of another type.
std::shared_ptr<const Layer> read_fields(const nvinfer1::PluginFieldCollection& fields);

// Fields that read_fields makes an equal layer of; they point into it. Of no layer: only names and types.
std::vector<nvinfer1::PluginField> fields_of(const Layer* layer);

}  // namespace kvedge::trt
#endif
