#include "support/golden.h"

#include <cstdlib>
#include <stdexcept>

namespace lockstep::test {

std::string data_path(const std::string& relative) {
  const char* root = std::getenv("LOCKSTEP_SOURCE_DIR");
  if (root == nullptr) throw std::runtime_error("LOCKSTEP_SOURCE_DIR is not set: run through ctest");
  return std::string(root) + "/tests/" + relative;
}

std::string exported_file(const std::string& name) {
  return data_path("unit/exported/golden/" + name + ".pt2");
}

const std::map<std::string, std::optional<std::string>>& portable_kernels() {
  static const std::map<std::string, std::optional<std::string>> variables{
      {"ATEN_CPU_CAPABILITY", "default"}, {"MKL_CBWR", "COMPATIBLE"}, {"ONEDNN_MAX_CPU_ISA", "SSE41"}};
  return variables;
}

}  // namespace lockstep::test
