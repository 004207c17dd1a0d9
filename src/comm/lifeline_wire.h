#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::comm {

// What travels on a lifeline: what rank 0 tells the others, and the goodbye of a rank. Each is
// one message of a connection that is proven (secure_connection.h).
enum class NoticeKind : uint8_t { kDied = 1, kLeft = 2 };

struct Notice {
  NoticeKind kind = NoticeKind::kDied;
  int rank = 0;
};

std::string encode_notice(Notice notice);
// nullopt for anything else.
std::optional<Notice> decode_notice(std::string_view message);

}  // namespace lockstep::comm
