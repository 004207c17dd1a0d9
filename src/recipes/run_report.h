#pragma once

namespace lockstep {
class Trainer;
}

namespace lockstep::recipes {

// What a recipe leaves after training beside the metrics: report.html in the run folder.
// Rank 0 writes it and says where it is; where it cannot, it warns. Every rank calls it.
void write_run_report(Trainer& trainer);

}  // namespace lockstep::recipes
