#pragma once

#include <cstdint>
#include <string_view>

#include "images/cifar_pickle.h"
#include "support/fuzz/finding.h"

namespace lockstep::fuzz {

// A file of CIFAR-100's Python version.
inline bool takes_cifar_pickle(std::string_view bytes) {
  try {
    const images::CifarPickle pickle = images::parse_cifar_pickle(
        {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "fine_labels", "fine_label_names");
    uint64_t sum = 0;
    for (const uint8_t byte : pickle.data) sum += byte;
    require(sum != UINT64_MAX, "every pixel can be read");
    require(
        static_cast<uint64_t>(pickle.count * pickle.row_bytes) == pickle.data.size() || pickle.data.empty(),
        "the array has the bytes of its shape");
    return true;
  } catch (const images::CifarPickleError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
