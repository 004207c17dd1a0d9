#include "comm/lifeline_wire.h"

#include "comm/job_store_wire.h"

namespace lockstep::comm {

std::string encode_notice(Notice notice) {
  return MessageWriter(static_cast<uint8_t>(notice.kind)).number(notice.rank).bytes();
}

std::optional<Notice> decode_notice(std::string_view message) {
  try {
    MessageReader reader(message);
    const auto kind = static_cast<NoticeKind>(reader.byte());
    if (kind != NoticeKind::kDied && kind != NoticeKind::kLeft) return std::nullopt;
    return Notice{kind, static_cast<int>(reader.number())};
  } catch (const MalformedMessage&) {
    return std::nullopt;
  }
}

}  // namespace lockstep::comm
