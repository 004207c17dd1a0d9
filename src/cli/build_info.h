#pragma once

namespace lockstep::cli {

// Of the build that made this program; CMake writes their source (cmake/LockstepBuildInfo.cmake).
extern const char kCommit[];  // "3f2a91c04d", with "+" if files differed from it; "unknown" without git
extern const char
    kBuiltTorch[];  // the folder of the LibTorch that the build was configured with; "": portable

}  // namespace lockstep::cli
