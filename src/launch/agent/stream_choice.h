#pragma once

#include <map>
#include <optional>
#include <string>

namespace lockstep::launcher {

struct Streams {
  bool out = false;
  bool err = false;
};

// For which of its standard streams something is wanted of a worker, by local rank:
// the value of --redirects and --tee. "0" none, "1" stdout, "2" stderr, "3" both, or
// "rank:number,..." for some ranks, none for the others.
class StreamChoice {
 public:
  StreamChoice() = default;
  // flag: its name in the message of the ConfigError for anything else.
  static StreamChoice parse(const std::string& flag, const std::string& text);

  Streams of(int local_rank) const;
  bool any() const;
  // The highest rank that is named, or -1.
  int highest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

 private:
  Streams all_;
  std::map<int, Streams> by_rank_;
};

}  // namespace lockstep::launcher
