#pragma once

// oneDNN, which computes LibTorch's 16-bit matrix products on the CPU.

namespace lockstep::torch_private {

// What the CPU reports about AMX, its unit for matrix products.
struct AmxReport {
  bool has_tiles = false;        // CPUID leaf 7: the instructions exist
  unsigned highest_leaf = 0;     // CPUID leaf 0
  unsigned highest_palette = 0;  // CPUID leaf 0x1d, if it exists: how tiles can be configured
};

// Reads the report of this CPU. An all-zero report on another architecture.
AmxReport read_amx_report();

// Whether the CPU has AMX and does not describe it. Some virtual machines hide leaf 0x1d. oneDNN then
// configures no tiles, and the first product of 16-bit matrices ends the process with SIGILL.
bool amx_is_undescribed(const AmxReport& report);

// Makes oneDNN use AVX-512 instead of AMX where AMX is not described, by ONEDNN_MAX_CPU_ISA. A value
// that the user has set stays. Returns whether oneDNN is limited in this way. Call it
// before the first 16-bit operation, and before other threads read the environment.
bool avoid_undescribed_amx();

}  // namespace lockstep::torch_private
