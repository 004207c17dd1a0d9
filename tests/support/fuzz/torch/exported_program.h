#pragma once

#include <string_view>
#include <vector>

#include "exported/executable.h"
#include "exported/input_rules.h"
#include "exported/program.h"
#include "exported/segments.h"

namespace lockstep::fuzz {

// The record models/model.json of a .pt2 file: its program is read, and its operators are resolved.
inline bool takes_exported_program(std::string_view bytes) {
  try {
    const exported::Program program = exported::parse_program(bytes);
    const exported::InputRules rules(program);
    const exported::Executable executable(program);
    // Every module as a segment, and those that are found.
    const std::vector<bool> all(program.calls.size(), true);
    const exported::Executable in_segments(program, {.shard = all, .recompute = all});
    const auto repeated = exported::calls_of(program, exported::modules_matching(program, "auto"));
    const exported::Executable in_blocks(program, {.shard = repeated, .recompute = repeated});
    return true;
  } catch (const exported::ProgramError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
