#include "interop/archive_output.h"

#include <exception>
#include <string_view>

#include "base/atomic_file.h"

namespace lockstep::interop {

void publish_archive(const std::filesystem::path& path,
                     const std::function<void(const ArchiveOutput&)>& write) {
  base::publish_file(path, [&](const base::Append& append) {
    // LibTorch's writers want to end their archive in a destructor that must not fail:
    // after a failure they are told that all is well.
    std::exception_ptr failure;
    write([&](const void* data, size_t bytes) -> size_t {
      try {
        if (!failure) append(std::string_view(static_cast<const char*>(data), bytes));
      } catch (...) {
        failure = std::current_exception();
      }
      return bytes;
    });
    if (failure) std::rethrow_exception(failure);
  });
}

}  // namespace lockstep::interop
