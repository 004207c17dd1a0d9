#include "engine/flops_profiler.h"

#include <lockstep/error.h>

#include <cstdio>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/log.h"

namespace lockstep::engine {
namespace {

void write(const std::filesystem::path& path, const std::string& page) {
  try {
    if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path());
    base::publish_file(path, page);
    base::log_info("engine", "the flops profile is in {}", path.string());
  } catch (const std::exception& error) {
    base::log_warning("engine", "the flops profile could not be written: {}", error.what());
  }
}

}  // namespace

FlopsProfiler::FlopsProfiler(const DeepSpeedConfig::FlopsProfiler& options, const torch::nn::Module& model,
                             c10::Device device)
    : options_(options), device_(device), profile_(model) {}

void FlopsProfiler::begin_forward(int64_t step) {
  if (step == options_.profile_step) recorder_.emplace(device_, profile_);
}

void FlopsProfiler::after_step(const ProfiledStep& step) {
  if (step.step != options_.profile_step) return;
  const std::string page = profile_text(step, profile_, options_);
  profile_.clear();
  if (options_.output_file && !options_.output_file->empty()) {
    write(*options_.output_file, page);
  } else {
    std::fputs(page.c_str(), stdout);
    std::fflush(stdout);
  }
}

}  // namespace lockstep::engine
