#pragma once

#include "support/fuzz/core/rendezvous.h"

namespace lockstep::fuzz {

// The body of one message: the header of its frame is right, so that all bytes reach the fields.
inline bool takes_rendezvous_body(std::string_view bytes) {
  return count_messages(launcher::encode_frame(bytes)) > 0;
}

}  // namespace lockstep::fuzz
