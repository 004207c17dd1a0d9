#include "comm/plugin.h"

#include <dlfcn.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <algorithm>
#include <filesystem>

#include "base/check.h"
#include "base/environment.h"

namespace lockstep::comm {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> plugin_folders() {
  std::vector<fs::path> folders;
  if (const auto folder = base::Environment::of_process().get("LOCKSTEP_PLUGIN_DIR")) {
    folders.emplace_back(*folder);
  }
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  folders.push_back(program);
  folders.push_back(program.parent_path() / "lib");
  Dl_info here{};
  if (dladdr(reinterpret_cast<void*>(&plugin_folders), &here) != 0) {
    const fs::path library = fs::weakly_canonical(here.dli_fname, ignored).parent_path();
    if (library != program) {
      folders.push_back(library);
    }
  }
  return folders;
}

std::string file_name(const std::string& name) { return fmt::format("liblockstep_{}.so", name); }

void* load(const std::string& name) {
  const std::string file = file_name(name);
  std::vector<std::string> tried;
  std::vector<fs::path> candidates;
  for (const fs::path& folder : plugin_folders()) {
    candidates.push_back(folder / file);
  }
  candidates.emplace_back(file);
  for (const fs::path& path : candidates) {
    // Never unloaded: its objects may live until the process ends.
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
      return library;
    }
    tried.push_back(fmt::format("{} ({})", path.string(), dlerror()));
  }
  throw ConfigError(
      "comm", fmt::format("plugin {} does not load; set LOCKSTEP_PLUGIN_DIR to its folder{}. Tried: {}", file,
                          name == "cuda" ? fmt::format(", or get it: {}", kBuildCuda) : ", or build it",
                          fmt::join(tried, "; ")));
}

template <typename Function>
Function* entry(const std::string& plugin, const char* symbol) {
  return reinterpret_cast<Function*>(plugin_function(plugin, symbol));
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_plugin_backend(const std::string& name, const PluginRequest& request) {
  c10::intrusive_ptr<c10d::Backend> backend;
  entry<PluginMakeBackend>(name, kPluginMakeBackend)(request, backend);
  return backend;
}

void* plugin_function(const std::string& name, const char* symbol) {
  void* function = dlsym(load(name), symbol);
  base::check(function != nullptr, fmt::format("{} has no function {}", file_name(name), symbol));
  return function;
}

bool plugin_exists(const std::string& name) {
  const std::vector<fs::path> folders = plugin_folders();
  return std::any_of(folders.begin(), folders.end(), [&](const fs::path& folder) {
    std::error_code ignored;
    return fs::exists(folder / file_name(name), ignored);
  });
}

bool ranks_share_devices() {
  const std::string value = base::Environment::of_process().get(kShareDevice).value_or("0");
  if (value == "0" || value == "1") return value == "1";
  throw ConfigError("comm", fmt::format("{} must be 0 or 1: '{}'", kShareDevice, value));
}

std::vector<CudaDevice> list_cuda_devices() {
  std::vector<CudaDevice> devices;
  entry<PluginListDevices>("cuda", kPluginListDevices)(devices);
  return devices;
}

std::unique_ptr<DeviceGraph> make_cuda_graph() {
  std::unique_ptr<DeviceGraph> graph;
  entry<PluginMakeGraph>("cuda", kPluginMakeGraph)(graph);
  return graph;
}

void use_own_cuda_stream(int device_index) {
  entry<PluginUseOwnStream>("cuda", kPluginUseOwnStream)(device_index);
}

void watch_cuda_stream(c10d::Backend& backend, const char* operation) {
  // Looked up once: every step calls this.
  static auto* const watch = entry<PluginWatchStream>("cuda", kPluginWatchStream);
  watch(backend, operation);
}

void limit_cuda_memory(int device_index, int64_t bytes) {
  entry<PluginLimitMemory>("cuda", kPluginLimitMemory)(device_index, bytes);
}

}  // namespace lockstep::comm
