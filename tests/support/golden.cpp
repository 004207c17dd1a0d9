#include "support/golden.h"

#include <cstdlib>
#include <stdexcept>

namespace lockstep::test {

std::string data_path(const std::string& relative) {
  const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (root == nullptr) throw std::runtime_error("LOCKSTEP_SOURCE_DIR is not set: run through ctest");
  return std::string(root) + "/tests/" + relative;
}

}  // namespace lockstep::test
