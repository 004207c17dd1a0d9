#include "comm/call_observer.h"

namespace lockstep::comm {

double bus_factor(std::string_view operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == "all_reduce") return 2 * others;
  if (operation == "broadcast" || operation == "barrier") return 1;
  return others;
}

}  // namespace lockstep::comm
