#pragma once

#include <optional>
#include <string>

#include "config/option_table.h"

namespace lockstep::launcher {

// The flags of `lockstep run` as they are written: torchrun's, with its names and
// defaults where it has them, then our own. run_options.h says what they mean.
struct RunFlags {
  // --- how many ---
  std::string nnodes = "1:1";
  std::string nproc_per_node = "1";
  int node_rank = 0;

  // --- where they meet ---
  std::string rdzv_backend = "static";
  std::string rdzv_endpoint;
  std::string rdzv_id = "none";
  std::string rdzv_conf;
  bool standalone = false;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;
  std::string local_addr;
  std::string token_file;

  // --- what runs ---
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  std::string role = "default";
  std::string numa_binding;
  bool virtual_local_rank = false;

  // --- how long ---
  int max_restarts = 0;
  double monitor_interval = 0.1;
  double shutdown_timeout = 30;
  double kill_timeout = 20;
  double stall_timeout = 30;
  std::string on_stall = "report";
  std::string signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";
  std::string notify_signals = "SIGUSR1,SIGUSR2";

  // --- what is shown and kept ---
  std::string log_dir;
  std::string redirects = "0";
  std::string tee = "0";
  std::string log_line_prefix_template;
  std::string local_ranks_filter;
  std::string duplicate_stdout_filters;
  std::string duplicate_stderr_filters;
  bool prefix = true;
  bool quiet = false;

  // --- instead of a run ---
  std::string print_completion;

  // --- torchrun's for Python functions and plug-ins; refused when given ---
  std::string start_method = "spawn";
  std::string event_log_handler = "null";
  std::string logs_specs;
};

// PET_NAME variables, as torchrun reads them, besides the flags.
config::OptionTable run_flag_table(RunFlags& flags);

}  // namespace lockstep::launcher
