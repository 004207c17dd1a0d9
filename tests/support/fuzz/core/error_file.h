#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "launcher/error_file.h"
#include "support/fuzz/finding.h"
#include "support/fuzz/memory_file.h"
#include "support/temporary_folder.h"

namespace lockstep::fuzz {

// What is taken can be passed on, and is taken again.
inline bool takes_error_file(std::string_view bytes) {
  static MemoryFile file;
  static const test::TemporaryFolder folder("/dev/shm");  // what is passed on is published: renamed
  const std::optional<launcher::WorkerError> error = launcher::read_error_file(file.write(bytes));
  if (!error) return false;
  const std::string copy = folder.path() / "copy.json";
  launcher::forward_error_file(copy, error->text, -9);
  require(launcher::read_error_file(copy).has_value(), "what was passed on is read again");
  return true;
}

}  // namespace lockstep::fuzz
