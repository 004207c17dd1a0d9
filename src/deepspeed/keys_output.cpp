#include "deepspeed/key.h"

namespace lockstep::deepspeed {

using C = DeepSpeedConfig;

void add_output_keys(std::vector<Key>& keys) {
  Section<C>(
      keys, "", [](auto& c) -> auto& { return c; })
      .honour("steps_per_print", &C::steps_per_print, "steps between progress lines; null or 0: none",
              {.range = {.least = 0}})
      .honour("wall_clock_breakdown", &C::wall_clock_breakdown,
              "times of forward, backward, all-reduce and step, with each progress line or after each step")
      .honour("memory_breakdown", &C::memory_breakdown, "memory along with the times")
      .honour("dump_state", &C::dump_state, "print the engine's state at the start")
      .honour("log_level", &C::log_level, "debug, info, warning or error; null: LOCKSTEP_LOG_LEVEL");

  Section<C::ThroughputTimer>(
      keys, "timers.throughput", [](auto& c) -> auto& { return c.throughput_timer; })
      .honour("enabled", &C::ThroughputTimer::enabled, "samples a second in the progress line")
      .honour("synchronized", &C::ThroughputTimer::synchronized,
              "wait for the device before reading the clock");

  Section<C::Monitor>(
      keys, "tensorboard", [](auto& c) -> auto& { return c.tensorboard; })
      .honour("enabled", &C::Monitor::enabled, "write TensorBoard events")
      .honour("output_path", &C::Monitor::output_path, "folder; empty: where the program was started")
      .honour("job_name", &C::Monitor::job_name, "folder in it");

  Section<C::Monitor>(
      keys, "csv_monitor", [](auto& c) -> auto& { return c.csv_monitor; })
      .honour("enabled", &C::Monitor::enabled, "write metrics.csv, a row a step")
      .honour("output_path", &C::Monitor::output_path, "folder; empty: where the program was started")
      .honour("job_name", &C::Monitor::job_name, "folder in it");

  using Profiler = C::FlopsProfiler;
  Section<Profiler>(
      keys, "flops_profiler", [](auto& c) -> auto& { return c.flops_profiler; })
      .honour("enabled", &Profiler::enabled, "count what the forwards of one step cost")
      .honour("profile_step", &Profiler::profile_step,
              "which step, counted from 0: 1 is the one after the first, which warms up",
              {.range = {.least = 1}})
      .honour("module_depth", &Profiler::module_depth,
              "depth down to which the costly modules are listed; -1: all", {.range = {.least = -1}})
      .honour("top_modules", &Profiler::top_modules, "how many of them at each depth",
              {.range = {.least = 1}})
      .honour("detailed", &Profiler::detailed, "print the tree of modules")
      .honour("output_file", &Profiler::output_file, "file; null: standard output")
      .honour("recompute_fwd_factor", &Profiler::recompute_fwd_factor,
              "forward passes that activation checkpointing repeats", {.range = {.least = 0, .most = 1}});

  using Logger = C::CommsLogger;
  Section<Logger>(
      keys, "comms_logger", [](auto& c) -> auto& { return c.comms_logger; })
      .honour("enabled", &Logger::enabled, "measure each collective; no two overlap then, nor with computing")
      .honour("verbose", &Logger::verbose, "a line for each call, on rank 0")
      .honour("prof_all", &Logger::prof_all, "all operations; false: those of prof_ops")
      .honour("debug", &Logger::debug, "tell apart calls of forward, backward and step")
      .honour("prof_ops", &Logger::prof_ops, "operations that are measured");
}

}  // namespace lockstep::deepspeed
