#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/state_dict.h"
#include "support/fuzz/torch/pickle.h"

namespace lockstep::fuzz {

// A TorchScript archive: the source of "code/__torch__.py", a line "== ", and data.pkl.
inline bool takes_script_archive(std::string_view bytes) {
  constexpr std::string_view kNext = "\n== \n";
  const size_t cut = bytes.find(kNext);
  if (cut == std::string_view::npos) return false;
  try {
    const checkpoint::Pickle pickle =
        checkpoint::parse_pickle(bytes.substr(cut + kNext.size()), checkpoint::UnknownNames::kKeep);
    make_tensors(checkpoint::find_script_tensors(pickle.root, [&](const std::string& name) {
      return name == "code/__torch__.py" ? std::optional(std::string(bytes.substr(0, cut + 1)))
                                         : std::nullopt;
    }));
    return true;
  } catch (const checkpoint::PickleError&) {
    return false;
  }
}

}  // namespace lockstep::fuzz
