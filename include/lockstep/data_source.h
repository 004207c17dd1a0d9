#pragma once

#include <lockstep/loader.h>

#include <map>
#include <string>
#include <utility>

namespace lockstep {

// Where a trainer's batches come from: a loader, several of them by name, or nothing, for
// a model that needs no data. Refers to the loaders: they must live while it is used.
class DataSource {
 public:
  DataSource() = default;
  DataSource(const Loader& loader) : loader_(&loader) {}  // NOLINT: implicit
  // A batch then has a part of each name; the shortest loader ends the epoch.
  DataSource(std::map<std::string, const Loader*> loaders)  // NOLINT: implicit
      : loaders_(std::move(loaders)) {}

  bool empty() const { return loader_ == nullptr && loaders_.empty(); }
  const Loader* loader() const { return loader_; }
  const std::map<std::string, const Loader*>& loaders() const { return loaders_; }

 private:
  const Loader* loader_ = nullptr;
  std::map<std::string, const Loader*> loaders_;
};

}  // namespace lockstep
