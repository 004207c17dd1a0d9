#pragma once

#include <string>

namespace lockstep::test {

// The path of a file below tests/, whatever folder the test runs in.
std::string data_path(const std::string& relative);

}  // namespace lockstep::test
