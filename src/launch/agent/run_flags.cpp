#include "launch/agent/run_flags.h"

namespace lockstep::launcher {
namespace {

// "": nothing is printed.
std::vector<std::string> print_choices() {
  std::vector<std::string> choices = config::completion_shells();
  choices.insert(choices.begin(), "");
  return choices;
}

}  // namespace

config::OptionTable run_flag_table(RunFlags& flags) {
  config::OptionTable table(
      "Starts a program once a rank, on this node or together with the same command on others, watches\n"
      "the ranks and ends or restarts them together. Takes torchrun's flags.\n"
      "\n"
      "  lockstep run -n 2 ./program --its-flag\n"
      "  lockstep run --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 -n 4 train.py",
      "PET_");
  table.add("nnodes", flags.nnodes, "nodes, or MIN:MAX for a job that may grow and shrink")
      .add("nproc_per_node", flags.nproc_per_node, "ranks on this node: a number, gpu, cpu or auto",
           {.short_flag = "n"})
      .add("node_rank", flags.node_rank, "which of the nodes this one is", {.minimum = 0})
      .add("rdzv_backend", flags.rdzv_backend, "static: node ranks are given; c10d: nodes come and get one",
           {.choices = {"static", "c10d"}})
      .add("rdzv_endpoint", flags.rdzv_endpoint, "HOST[:PORT] of node 0, where the launchers meet")
      .add("rdzv_id", flags.rdzv_id, "the job's name; launchers with another one are refused")
      .add("rdzv_conf", flags.rdzv_conf,
           "KEY=VALUE,...: join_timeout, last_call_timeout, timeout, heartbeat_timeout, is_host")
      .add("standalone", flags.standalone, "this node alone", {.negatable = false})
      .add("master_addr", flags.master_addr, "address of node 0, with --rdzv-backend static")
      .add("master_port", flags.master_port, "port on node 0; unset: a free one on one node, else 29500",
           {.minimum = 0})
      .add("local_addr", flags.local_addr, "the address of this node that the others use")
      .add("token_file", flags.token_file, "file with the job's secret, readable by its owner only")
      .add("module", flags.module, "run python -m PROGRAM", {.short_flag = "m", .negatable = false})
      .add("no_python", flags.no_python, "execute the program as it is, also a .py", {.negatable = false})
      .add("run_path", flags.run_path, "run the program under Python, whatever its name",
           {.negatable = false})
      .add("role", flags.role, "name of the workers in prefixes and ROLE_NAME")
      .add("numa_binding", flags.numa_binding, "bind each rank to the CPUs near its GPU",
           {.choices = {"", "node", "socket", "exclusive", "core-complex"}, .has_variable = false})
      .add("virtual_local_rank", flags.virtual_local_rank, "LOCAL_RANK=0 and one visible GPU for every rank",
           {.negatable = false})
      .add("max_restarts", flags.max_restarts, "failures that the whole job survives", {.minimum = 0})
      .add("monitor_interval", flags.monitor_interval,
           "seconds; taken for torchrun's sake, an end is noticed at once", {.minimum = 0})
      .add("shutdown_timeout", flags.shutdown_timeout,
           "seconds from SIGTERM to SIGKILL; TORCH_ELASTIC_SHUTDOWN_TIMEOUT sets it too")
      .add("kill_timeout", flags.kill_timeout,
           "seconds from SIGKILL until a node whose ranks have not ended counts as lost")
      .add("stall_timeout", flags.stall_timeout,
           "seconds without progress until a job that hangs in a collective is reported; 0: never")
      .add("on_stall", flags.on_stall,
           "then: only report it, kill the ranks that others wait for, or end the job",
           {.choices = {"report", "restart", "abort"}})
      .add("signals_to_handle", flags.signals_to_handle, "signals that end the job")
      .add("notify_signals", flags.notify_signals, "signals that are passed to the ranks and end nothing")
      .add("log_dir", flags.log_dir, "folder of the log files; unset: a temporary one")
      .add("redirects", flags.redirects,
           "write to files instead: 0, 1 stdout, 2 stderr, 3 both, or RANK:N,...", {.short_flag = "r"})
      .add("tee", flags.tee, "write to files as well, the same way", {.short_flag = "t"})
      .add("log_line_prefix_template", flags.log_line_prefix_template,
           "before each line of a rank; ${role_name}, ${rank}, ${local_rank} and ${hostname} are replaced")
      .add("local_ranks_filter", flags.local_ranks_filter, "show only these local ranks: 0,2")
      .add("duplicate_stdout_filters", flags.duplicate_stdout_filters,
           "copy lines that hold one of TEXT,TEXT to filtered_stdout.log")
      .add("duplicate_stderr_filters", flags.duplicate_stderr_filters, "the same for stderr")
      .add("prefix", flags.prefix, "show which rank a line is from, where there are several")
      .add("quiet", flags.quiet, "say nothing but what failed", {.negatable = false})
      .add("print_completion", flags.print_completion, "print a script that completes these flags in a shell",
           {.choices = print_choices(), .has_variable = false})
      .add("start_method", flags.start_method, "has no effect: refused")
      .add("event_log_handler", flags.event_log_handler, "has no effect: refused")
      .add("logs_specs", flags.logs_specs, "has no effect: refused", {.has_variable = false});
  return table;
}

}  // namespace lockstep::launcher
