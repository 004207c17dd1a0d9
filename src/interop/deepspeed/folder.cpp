#include "interop/deepspeed/folder.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <regex>

namespace lockstep::interop {
namespace {

namespace fs = std::filesystem;

constexpr char kLatestName[] = "latest";
constexpr size_t kMaxTagBytes = 255;

[[noreturn]] void fail(const fs::path& path, const std::string& reason) {
  throw ConfigError("interop", fmt::format("cannot import '{}': {}", path.string(), reason));
}

bool has_states(const fs::path& folder) {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename();
    if (name.ends_with("_model_states.pt") || name.ends_with("optim_states.pt")) return true;
  }
  return false;
}

// A tag is the name of a folder beside `latest`, and never a way to another one.
void check_tag(const fs::path& path, const std::string& tag, const std::string& whose) {
  const bool plain =
      !tag.empty() && tag.size() <= kMaxTagBytes && tag != "." && tag != ".." &&
      tag.find('/') == std::string::npos &&
      std::all_of(tag.begin(), tag.end(), [](unsigned char c) { return c >= ' ' && c != 127; });
  if (!plain) fail(path, fmt::format("{} is no name of a folder in it", whose));
}

std::string latest_tag(const fs::path& path) {
  const fs::path file = path / kLatestName;
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail(path, "it has no file 'latest'. Name the checkpoint in it with --tag");
  std::string tag(kMaxTagBytes + 2, '\0');
  stream.read(tag.data(), static_cast<std::streamsize>(tag.size()));
  tag.resize(static_cast<size_t>(stream.gcount()));
  while (!tag.empty() && (tag.back() == '\n' || tag.back() == '\r' || tag.back() == ' ')) tag.pop_back();
  check_tag(path, tag, "what its file 'latest' says");
  return tag;
}

fs::path checkpoint_folder(const fs::path& path, const std::string& tag) {
  if (!fs::is_directory(path)) fail(path, "there is no such folder");
  if (tag.empty() && has_states(path)) return path;
  const std::string name = tag.empty() ? latest_tag(path) : tag;
  check_tag(path, name, "--tag");
  if (!fs::is_directory(path / name)) {
    fail(path, fmt::format("there is no checkpoint '{}' in it{}", name,
                           tag.empty() ? ", though its file 'latest' says so" : ""));
  }
  return path / name;
}

std::string refusal(const std::string& name) {
  if (name.find("expert_") != std::string::npos || name.starts_with("expp_rank_")) {
    return "a mixture of experts, which is not read here";
  }
  if (name.starts_with("layer_")) return "pipeline parallel, which is not read here";
  return "";
}

// The files of a kind by rank.
using Ranks = std::map<int, fs::path>;

std::vector<fs::path> in_order(const fs::path& folder, const Ranks& ranks, const std::string& what) {
  std::vector<fs::path> files;
  for (const auto& [rank, file] : ranks) {
    if (rank != static_cast<int>(files.size())) {
      fail(folder, fmt::format("the {} of rank {} is missing: there are {} of at least {}", what,
                               files.size(), ranks.size(), ranks.rbegin()->first + 1));
    }
    files.push_back(file);
  }
  return files;
}

// Numbers of up to four digits.
int rank_of(const std::ssub_match& digits) { return std::stoi(digits.str()); }

}  // namespace

bool is_deepspeed_folder(const fs::path& path) {
  if (!fs::is_directory(path)) return false;
  if (has_states(path)) return true;
  if (!fs::is_regular_file(path / kLatestName)) return false;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(path, error)) {
    if (entry.is_directory(error) && has_states(entry.path())) return true;
  }
  return fs::exists(path / "zero_to_fp32.py");
}

DeepSpeedFiles find_deepspeed_files(const fs::path& path, const std::string& tag) {
  static const std::regex kModel("mp_rank_(\\d{2,4})_model_states\\.pt");
  static const std::regex kModelPart("zero_pp_rank_(\\d{1,4})_mp_rank_(\\d{2,4})_model_states\\.pt");
  static const std::regex kOptimizer(
      "(bf16_|fp16_)?zero_pp_rank_(\\d{1,4})_mp_rank_(\\d{2,4})_?optim_states\\.pt");
  DeepSpeedFiles files;
  files.folder = checkpoint_folder(path, tag);
  Ranks whole;
  Ranks parts;
  Ranks optimizer;
  std::optional<std::string> prefix;
  const auto add = [&](Ranks& ranks, int rank, int model_rank, const fs::path& file) {
    if (model_rank > 0) {
      fail(files.folder,
           fmt::format("'{}' is of a model that is divided over ranks (model or tensor parallel), "
                       "which is not read here",
                       file.filename().string()));
    }
    ranks.emplace(rank, file);
  };
  for (const auto& entry : fs::directory_iterator(files.folder)) {
    const std::string name = entry.path().filename();
    if (const std::string reason = refusal(name); !reason.empty()) {
      fail(files.folder, fmt::format("'{}' is of a {}", name, reason));
    }
    std::smatch match;
    if (std::regex_match(name, match, kModel)) {
      add(whole, 0, rank_of(match[1]), entry.path());
    } else if (std::regex_match(name, match, kModelPart)) {
      add(parts, rank_of(match[1]), rank_of(match[2]), entry.path());
    } else if (std::regex_match(name, match, kOptimizer)) {
      add(optimizer, rank_of(match[2]), rank_of(match[3]), entry.path());
      if (prefix && *prefix != match[1].str()) {
        fail(files.folder, fmt::format("its optimizer files are of two trainings, as '{}' and '{}' ones",
                                       *prefix, match[1].str()));
      }
      prefix = match[1].str();
    }
  }
  if (whole.empty() && parts.empty()) {
    fail(files.folder,
         "it has no file 'mp_rank_00_model_states.pt' or 'zero_pp_rank_0_mp_rank_00_model_states.pt'");
  }
  // A model that is not divided may have both: then the whole one has what the parts have.
  files.model = in_order(files.folder, whole.empty() ? parts : whole, "model file");
  files.optimizer = in_order(files.folder, optimizer, "optimizer file");
  return files;
}

}  // namespace lockstep::interop
