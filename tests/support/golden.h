#pragma once

#include <map>
#include <optional>
#include <string>

namespace lockstep::test {

// The largest difference from a number in a golden file that counts as equal; 0: the bits must be equal. The
// files were made on x86-64. On other processors LibTorch's matrix products and vector kernels add in another
// order: fifty steps of training end up to 2.4e-7 apart on aarch64.
#if defined(__x86_64__)
inline constexpr double kGoldenTolerance = 0;
#else
inline constexpr double kGoldenTolerance = 1e-6;
#endif

// The path of a file below tests/, whatever folder the test runs in.
std::string data_path(const std::string& relative);

// A file that tests/unit/exported/golden/make_golden.py wrote: "net" is net.pt2.
std::string exported_file(const std::string& name);

// Variables that make ATen, MKL and oneDNN run the kernels that every x86-64 processor has, so that weights
// kept in files do not depend on the machine: tests/numeric/golden/make_ddp_golden.py sets the same. They are
// read when a process starts.
const std::map<std::string, std::optional<std::string>>& portable_kernels();

}  // namespace lockstep::test
