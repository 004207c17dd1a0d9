#include "comm/call_observer.h"

namespace lockstep::comm {

double bus_factor(std::string_view operation, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (operation == "all_reduce") return 2 * others;
  if (operation == "all_gather" || operation == "reduce_scatter" || operation == "all_to_all") return others;
  return 1;
}

}  // namespace lockstep::comm
