// Error files that are as deep as the largest file that is read can be. Other foreign bytes:
// tests/unit/fuzz/core.

#include <gtest/gtest.h>

#include "support/fuzz/core/error_file.h"

namespace lockstep::launcher {
namespace {

// Whoever walks such a file must not run out of stack.
TEST(ErrorFileFuzzTest, DepthDoesNoHarm) {
  const size_t depth = 500'000;
  fuzz::takes_error_file("{\"message\": " + std::string(depth, '[') + std::string(depth, ']') + "}");
  fuzz::takes_error_file("{\"message\": {\"extraInfo\": {\"py_callstack\": " + std::string(depth, '[') +
                         std::string(depth, ']') + "}}}");
}

}  // namespace
}  // namespace lockstep::launcher
