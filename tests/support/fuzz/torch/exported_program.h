#pragma once

#include <string_view>

#include "exported/executable.h"
#include "exported/input_rules.h"
#include "exported/program.h"

namespace lockstep::fuzz {

// The record models/model.json of a .pt2 file: its program is read, and its operators are resolved.
inline bool takes_exported_program(std::string_view bytes) {
  try {
    const exported::Program program = exported::parse_program(bytes);
    const exported::InputRules rules(program);
    const exported::Executable executable(program);
    return true;
  } catch (const exported::ProgramError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
