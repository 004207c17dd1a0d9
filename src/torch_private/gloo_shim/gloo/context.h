#pragma once

// LibTorch's wheel has Gloo's code without its headers. The shim declares the few names that
// ProcessGroupGloo.hpp and gloo_backend.cpp use. Our code never creates or copies these objects, so
// only the names have to agree.

#include <chrono>
#include <exception>
#include <memory>
#include <string>

namespace gloo {

namespace transport {
class Pair;

namespace tcp {
// The implementation of transport::Pair that every Gloo device of LibTorch creates. transport::Pair is
// its first base.
class Pair {
 public:
  // Fails the pending operations of the connection and closes it. Thread-safe.
  std::exception_ptr signalExceptionExternal(const std::string& message);
};
}  // namespace tcp
}  // namespace transport

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
  // Null for the rank itself.
  std::unique_ptr<transport::Pair>& getPair(int rank);
};

}  // namespace gloo
