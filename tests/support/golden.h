#pragma once

#include <map>
#include <optional>
#include <string>

namespace lockstep::test {

// The path of a file below tests/, whatever folder the test runs in.
std::string data_path(const std::string& relative);

// Variables that make ATen, MKL and oneDNN run the kernels that every x86-64 processor has, so that weights
// kept in files do not depend on the machine: tests/numeric/golden/make_ddp_golden.py sets the same. They are
// read when a process starts.
const std::map<std::string, std::optional<std::string>>& portable_kernels();

}  // namespace lockstep::test
