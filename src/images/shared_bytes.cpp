#include "images/shared_bytes.h"

#include <new>

#include "base/mapped_file.h"
#include "images/file_error.h"

namespace lockstep::images {

SharedBytes map_file(const std::filesystem::path& path) {
  auto file = std::make_shared<const base::MappedFile>(path, kComponent);
  const std::span<const uint8_t> bytes = file->bytes();
  return {std::move(file), bytes};
}

WritableBytes allocate_bytes(size_t count, const std::filesystem::path& path) {
  // Without a first value: pages that are never written to cost nothing.
  auto* data = new (std::nothrow) uint8_t[count];
  if (data == nullptr) {
    throw ConfigError(kComponent, fmt::format("no memory for the {} bytes of '{}'", count, path.string()));
  }
  std::shared_ptr<const void> owner(data, [data](const void*) { delete[] data; });
  return {{std::move(owner), {data, count}}, data};
}

}  // namespace lockstep::images
