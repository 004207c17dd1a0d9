#pragma once

// The version of the library, for programs that print or compare it. docs/stability.md says what may
// change between two versions.
//
// Example:
//
//   std::printf("Lockstep %s\n", lockstep::kVersion);
//
// More: docs/stability.md

namespace lockstep {

// MAJOR.MINOR.PATCH.
inline constexpr char kVersion[] = "0.1.0";

}  // namespace lockstep
