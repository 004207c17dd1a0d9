#pragma once

#include <string>

#include "support/golden.h"

namespace lockstep::test {

// A file that golden/make_golden.py wrote.
inline std::string golden(const std::string& name) { return data_path("unit/checkpoint/golden/" + name); }

}  // namespace lockstep::test
