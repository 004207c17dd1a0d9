#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include <lockstep/json.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "checkpoint/compare_weights.h"
#include "checkpoint/weights.h"
#include "cli/commands.h"
#include "cli/text.h"

namespace lockstep::cli::ckpt {
namespace {

struct DiffOptions {
  std::string a;
  std::string b;
  std::string what = "model";
  double rtol = 0;
  double atol = 0;
  bool json = false;
};

using Tensors = std::map<std::string, at::Tensor>;

struct DifferenceRow {
  std::string name;
  std::string what;  // in words; empty: the values differ, or nothing does
  std::optional<checkpoint::TensorDifference> values;
  bool differs = false;
};

// Names as a plain model has them.
Tensors read(const std::string& path, const DiffOptions& options) {
  const auto which =
      options.what == "all" ? checkpoint::WhichTensors::kAll : checkpoint::WhichTensors::kModel;
  const NamedTensors tensors = checkpoint::read_tensors(checkpoint::find_weights(path), which);
  const size_t prefix = checkpoint::wrapper_prefix(tensors).size();
  Tensors result;
  for (const auto& [name, tensor] : tensors) result[name.substr(prefix)] = tensor;
  return result;
}

std::string describe(const at::Tensor& tensor) {
  return fmt::format("{} {}", dtype_text(tensor.scalar_type()), shape_text(tensor.sizes().vec()));
}

DifferenceRow compare(const std::string& name, const at::Tensor& a, const at::Tensor& b,
                      const DiffOptions& options) {
  DifferenceRow row{.name = name};
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) {
    row.what = fmt::format("{} in a, {} in b", describe(a), describe(b));
    row.differs = true;
  }
  if (a.sizes() != b.sizes()) return row;
  row.values = checkpoint::compare_tensors(a, b, {options.rtol, options.atol});
  row.differs = row.differs || row.values->out_of_range > 0;
  return row;
}

std::vector<DifferenceRow> compare_all(const Tensors& a, const Tensors& b, const DiffOptions& options) {
  std::vector<DifferenceRow> rows;
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end()) {
      rows.push_back({name, fmt::format("only in a: {}", describe(tensor)), std::nullopt, true});
    } else {
      rows.push_back(compare(name, tensor, other->second, options));
    }
  }
  for (const auto& [name, tensor] : b) {
    if (a.count(name) == 0)
      rows.push_back({name, fmt::format("only in b: {}", describe(tensor)), std::nullopt, true});
  }
  return rows;
}

// Every tensor that is not equal, also where the tolerance lets it pass.
void print_table(const std::vector<DifferenceRow>& rows, size_t different) {
  std::vector<std::vector<std::string>> cells = {{"tensor", "max abs", "max rel", "elements", ""}};
  for (const DifferenceRow& row : rows) {
    if (!row.differs && row.values && row.values->elements == 0) continue;
    std::vector<std::string> line = {row.name, "-", "-", "-", row.what};
    if (row.values) {
      line[1] = fmt::format("{:.6g}", row.values->max_absolute);
      line[2] = fmt::format("{:.6g}", row.values->max_relative);
      line[3] = std::to_string(row.values->elements);
      if (!row.differs) line[4] = "within the tolerance";
    }
    cells.push_back(std::move(line));
  }
  if (cells.size() > 1) fmt::print("{}\n", table_text(cells, {false, true, true, true, false}));
  fmt::print("{} of {} tensors differ\n", different, rows.size());
}

// JSON has no infinity: null.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

void print_json(const std::vector<DifferenceRow>& rows, size_t different) {
  Json result = {{"different", different}, {"tensors", Json::array()}};
  for (const DifferenceRow& row : rows) {
    Json item = {{"name", row.name}, {"differs", row.differs}};
    if (!row.what.empty()) item["what"] = row.what;
    if (row.values) {
      item.update({{"elements", row.values->elements},
                   {"max_abs", number(row.values->max_absolute)},
                   {"max_rel", number(row.values->max_relative)}});
    }
    result["tensors"].push_back(std::move(item));
  }
  fmt::print("{}\n", result.dump(Json::Print{.indent = 2, .replace_invalid = true}));
}

int diff(const DiffOptions& options) {
  const std::vector<DifferenceRow> rows =
      compare_all(read(options.a, options), read(options.b, options), options);
  const auto different = static_cast<size_t>(
      std::count_if(rows.begin(), rows.end(), [](const DifferenceRow& row) { return row.differs; }));
  options.json ? print_json(rows, different) : print_table(rows, different);
  return different == 0 ? kExitSuccess : kExitFailure;
}

}  // namespace
}  // namespace lockstep::cli::ckpt

namespace lockstep::cli {

int run_ckpt_diff(int argc, const char* const* argv) {
  ckpt::DiffOptions options;
  config::OptionTable("Compares two checkpoints or weights files; status 1: they differ.",
                      config::kNoVariables)
      .add_argument("A", options.a, "checkpoint, run, .safetensors or .pt file", {.required = true})
      .add_argument("B", options.b, "the same", {.required = true})
      .add("what", options.what, "model: the weights; all: every tensor of a checkpoint",
           {.choices = {"model", "all"}})
      .add("rtol", options.rtol, "values may differ by this part of B's", {.minimum = 0})
      .add("atol", options.atol, "and by this much", {.minimum = 0})
      .add("json", options.json, "print JSON", {.negatable = false})
      .parse(argc, argv);
  return ckpt::diff(options);
}

}  // namespace lockstep::cli
