#include "torch_private/onednn.h"

#include <cstdlib>
#include <string_view>

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace lockstep::torch_private {

namespace {

constexpr unsigned kPaletteLeaf = 0x1d;
constexpr char kVariable[] = "ONEDNN_MAX_CPU_ISA";
constexpr char kWithoutAmx[] = "AVX512_CORE_FP16";

}  // namespace

AmxReport read_amx_report() {
  AmxReport report;
#ifdef __x86_64__
  constexpr unsigned kTileBit = 1U << 24;  // of leaf 7's EDX
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  report.highest_leaf = __get_cpuid_max(0, nullptr);
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0) report.has_tiles = (edx & kTileBit) != 0;
  if (__get_cpuid_count(kPaletteLeaf, 0, &eax, &ebx, &ecx, &edx) != 0) report.highest_palette = eax;
#endif
  return report;
}

bool amx_is_undescribed(const AmxReport& report) {
  return report.has_tiles && (report.highest_leaf < kPaletteLeaf || report.highest_palette == 0);
}

bool avoid_undescribed_amx() {
  if (!amx_is_undescribed(read_amx_report())) return false;
  ::setenv(kVariable, kWithoutAmx, 0);
  return std::string_view(std::getenv(kVariable)) == kWithoutAmx;
}

}  // namespace lockstep::torch_private
