// Where the plugin says what went wrong: TensorRT takes only a number back.
#ifndef KVEDGE_TENSORRT_LOG_H
#define KVEDGE_TENSORRT_LOG_H

#include <NvInfer.h>

#include <exception>

namespace kvedge::trt {

// Of the process; null takes messages to standard error.
void set_logger_finder(nvinfer1::ILoggerFinder* finder);
void log(nvinfer1::ILogger::Severity severity, const char* message) noexcept;

// What `body` returns, or `failed` and a message in the log: nothing is thrown into TensorRT.
template <typename Result, typename Body>
Result guarded(Result failed, Body body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    log(nvinfer1::ILogger::Severity::kERROR, error.what());
    return failed;
  }
}

}  // namespace kvedge::trt
#endif
