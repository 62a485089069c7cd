#include "shapes.h"

namespace kvedge::trt {

using nvinfer1::DataType;

DataType data_type_of(const Layer& layer, Argument tensor) {
  switch (type_of(layer, tensor)) {
    case Type::kFloat32: return DataType::kFLOAT;
    case Type::kFloat16: return DataType::kHALF;
    default: return DataType::kINT32;
  }
}

std::string text_of(DataType type) {
  switch (type) {
    case DataType::kFLOAT: return name_of(Type::kFloat32);
    case DataType::kHALF: return name_of(Type::kFloat16);
    case DataType::kINT32: return name_of(Type::kInt32);
    default: return "TensorRT's type " + std::to_string(static_cast<int>(type));
  }
}

Shape shape_of(const nvinfer1::Dims& dims) {
  return dims.nbDims > 0 ? Shape(dims.d, dims.d + dims.nbDims) : Shape();
}

}  // namespace kvedge::trt
