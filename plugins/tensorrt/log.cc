#include "log.h"

#include <atomic>
#include <cstdio>

namespace kvedge::trt {
namespace {

std::atomic<nvinfer1::ILoggerFinder*> finder_of_process{nullptr};

}  // namespace

void set_logger_finder(nvinfer1::ILoggerFinder* finder) { finder_of_process = finder; }

void log(nvinfer1::ILogger::Severity severity, const char* message) noexcept {
  nvinfer1::ILoggerFinder* const finder = finder_of_process;
  nvinfer1::ILogger* const logger = finder == nullptr ? nullptr : finder->findLogger();
  if (logger != nullptr) logger->log(severity, message);
  else std::fprintf(stderr, "kvedge: %s\n", message);
}

}  // namespace kvedge::trt
