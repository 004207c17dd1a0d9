#include "cli/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "checkpoint/dtype.h"

namespace lockstep::cli {

std::string dtype_text(at::ScalarType dtype) {
  const std::string_view name = checkpoint::python_dtype_name(dtype);
  return std::string(name.substr(name.rfind('.') + 1));
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string table_text(const std::vector<std::vector<std::string>>& rows,
                       const std::vector<bool>& right_aligned) {
  std::vector<size_t> widths(right_aligned.size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i == 0 ? "" : "  ";
      line += right_aligned[i] ? fmt::format("{:>{}}", row[i], widths[i])
                               : fmt::format("{:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace lockstep::cli
