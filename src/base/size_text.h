#pragma once

#include <cstdint>
#include <string>

namespace lockstep::base {

// "512 B", "1.5 MiB".
std::string size_text(int64_t bytes);

}  // namespace lockstep::base
