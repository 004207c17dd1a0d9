#include "recipes/peak_flops.h"

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

namespace lockstep::recipes {
namespace {

// Words end at spaces and hyphens: "NVIDIA A100-SXM4-80GB". In capitals, because the V100 has PCIE, the H100
// PCIe.
std::vector<std::string> words_of(std::string_view device) {
  std::vector<std::string> words(1);
  for (const char letter : device) {
    if (letter == ' ' || letter == '-') {
      words.emplace_back();
    } else {
      words.back() += static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    }
  }
  return words;
}

}  // namespace

std::optional<double> peak_flops_of(std::string_view device) {
  struct Peak {
    std::string_view name;
    std::string_view variant;  // empty: all others
    double tflops;
  };
  constexpr Peak kPeaks[] = {{"GB200", "", 2500}, {"B200", "", 2250},    {"H200", "NVL", 835},
                             {"H200", "", 989},   {"H100", "PCIE", 756}, {"H100", "NVL", 835},
                             {"H100", "", 989},   {"GH200", "", 989},    {"A100", "", 312},
                             {"L40S", "", 362},   {"L40", "", 181},      {"A40", "", 150},
                             {"L4", "", 121},     {"V100", "PCIE", 112}, {"V100", "", 125}};
  const std::vector<std::string> words = words_of(device);
  const auto has = [&](std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  if (has("MIG")) return std::nullopt;  // a part of a GPU
  for (const Peak& peak : kPeaks) {
    if (has(peak.name) && (peak.variant.empty() || has(peak.variant))) return peak.tflops * 1e12;
  }
  return std::nullopt;
}

}  // namespace lockstep::recipes
