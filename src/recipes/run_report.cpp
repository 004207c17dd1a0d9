#include "recipes/run_report.h"

#include <lockstep/trainer.h>
#include <lockstep/world.h>

namespace lockstep::recipes {

void write_run_report(Trainer& trainer) {}

}  // namespace lockstep::recipes
