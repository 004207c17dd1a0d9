#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/number.h"

namespace lockstep::cli {

using base::size_text;
// "float32", as Python prints it without "torch.".
std::string dtype_text(at::ScalarType dtype);
// "[3, 4]".
std::string shape_text(const std::vector<int64_t>& shape);

// A table whose first row is its head; columns as wide as their widest cell. Numbers of
// right_aligned columns end at the same place.
std::string table_text(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<bool>& right_aligned);

}  // namespace lockstep::cli
