#include "recipes/run_report.h"

#include <lockstep/error.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>

#include <filesystem>

#include "base/log.h"
#include "report/report.h"

namespace lockstep::recipes {

void write_run_report(Trainer& trainer) {
  if (!trainer.world().is_main()) return;
  const std::filesystem::path folder = trainer.run_folder();
  try {
    report::write_report({folder}, folder / "report.html");
    if (trainer.config().verbose) trainer.print("Report: " + (folder / "report.html").string());
  } catch (const std::exception& error) {
    // The training is done and its metrics are there: `lockstep report` can be run again.
    base::log_warning("train", "the report was not written: {}", error.what());
  }
}

}  // namespace lockstep::recipes
