#pragma once

// LibTorch's wheel carries Gloo's code without its headers. The shim declares the
// few names that ProcessGroupGloo.hpp and gloo_backend.cpp use; none of these
// objects is ever created or copied by our code, so only names have to agree.

#include <chrono>
#include <exception>
#include <memory>
#include <string>

namespace gloo {

namespace transport {
class Pair;

namespace tcp {
// The implementation of transport::Pair that every Gloo device of LibTorch makes;
// transport::Pair is its first base.
class Pair {
 public:
  // Fails what is pending on the connection, and closes it. Thread-safe.
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
