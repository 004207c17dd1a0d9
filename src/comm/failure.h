#pragma once

#include <lockstep/error.h>

#include <chrono>
#include <exception>
#include <string_view>

namespace lockstep::comm {

// A CommError because a peer did not take part in time; its connections stand.
class TimeoutError : public CommError {
 public:
  using CommError::CommError;
};

// Where an exception came from, for its text.
struct OperationContext {
  std::string_view operation;
  std::string_view backend;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout{0};
};

// The one place where what c10d throws becomes what Lockstep throws: an argument
// that c10d refuses is a ConfigError; a timeout, a lost connection or a failed
// store is a CommError. Exceptions of Lockstep pass unchanged.
std::exception_ptr translate_failure(std::exception_ptr failure, const OperationContext& context);

}  // namespace lockstep::comm
