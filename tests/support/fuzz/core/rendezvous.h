#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/rendezvous/heartbeats.h"
#include "launcher/rendezvous/message.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// The number of messages in a stream, cut into pieces like a network does. What was taken can be
// sent again. The bytes themselves choose the pieces, so that the same bytes give the same run.
inline int count_messages(std::string_view bytes) {
  launcher::FrameReader reader(launcher::kMaxMemberBytes);
  int messages = 0;
  uint64_t random = bytes.size();
  try {
    for (size_t i = 0; i < bytes.size();) {
      random = random * 6364136223846793005ULL + 1442695040888963407ULL;
      const size_t size = 1 + (random >> 33U) % 200;
      reader.feed(bytes.substr(i, size));
      i += size;
      while (const std::optional<std::string> body = reader.next()) {
        const launcher::wire::Message message = launcher::wire::decode(*body);
        const std::string again = launcher::wire::encode(message).substr(launcher::kFrameHeaderBytes);
        require(launcher::wire::decode(again).index() == message.index(), "a message can be sent again");
        ++messages;
      }
    }
  } catch (const launcher::ProtocolError&) {
  }
  return messages;
}

inline bool takes_rendezvous(std::string_view bytes) {
  launcher::read_pulse(bytes);
  return count_messages(bytes) > 0;
}

}  // namespace lockstep::fuzz
