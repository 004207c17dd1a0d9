#include "deepspeed/key.h"

namespace lockstep::deepspeed {
namespace {

using C = DeepSpeedConfig;
using Zero = C::Zero;

void add_offload_keys(std::vector<Key>& keys) {
  using Offload = C::OffloadOptimizer;
  Section<Offload>(
      keys, "zero_optimization.offload_optimizer", [](auto& c) -> auto& { return c.zero.offload_optimizer; })
      .honour("device", &Offload::device,
              "where the optimizer's state lives: none, cpu, or with stage 3 nvme")
      .honour("nvme_path", &Offload::nvme_path, "folder for device nvme")
      .honour("pin_memory", &Offload::pin_memory, "page-locked memory")
      .honour("buffer_count", &Offload::buffer_count, "buffers for device nvme", {.range = {.least = 1}})
      .honour("pipeline_read", &Offload::pipeline_read, "read the next tile while one is computed")
      .honour("pipeline_write", &Offload::pipeline_write, "write a tile while the next is computed")
      .fix("fast_init", {"false", "true"}, "files of device nvme are never filled with zeros, either way")
      .honour("ratio", &Offload::ratio, "part of the state that is offloaded; less than 1 is refused",
              {.range = {.least = 0, .most = 1}})
      .fix("super_offload", {"false"}, "it is for one kind of machine")
      .fix("cpuadam_cores_perc", {"0.8"}, "only super_offload reads it");

  using OffloadParam = C::OffloadParam;
  const char* nvme_only = "only nvme reads it, and parameters are offloaded to CPU memory only";
  Section<OffloadParam>(
      keys, "zero_optimization.offload_param", [](auto& c) -> auto& { return c.zero.offload_param; })
      .honour("device", &OffloadParam::device,
              "where parameters wait with stage 3: none or cpu; cpu with offload_optimizer")
      .honour("pin_memory", &OffloadParam::pin_memory, "page-locked memory")
      .fix("nvme_path", {"null"}, nvme_only)
      .fix("buffer_count", {"5"}, nvme_only)
      .fix("buffer_size", {"100000000"}, nvme_only)
      .fix("max_in_cpu", {"1000000000"}, nvme_only);

  using Aio = C::Aio;
  Section<Aio>(
      keys, "aio", [](auto& c) -> auto& { return c.aio; })
      .honour("block_size", &Aio::block_size, "bytes of one transfer", {.range = {.least = 4096}})
      .honour("queue_depth", &Aio::queue_depth, "transfers under way", {.range = {.least = 1, .most = 32768}})
      .honour("intra_op_parallelism", &Aio::intra_op_parallelism, "threads; with device nvme only 1",
              {.range = {.least = 1, .most = 1024}, .aliases = {"thread_count"}})
      .fix("single_submit", {"false"}, "io_uring submits what is ready at once")
      .fix("overlap_events", {"true"}, "io_uring overlaps submission and completion")
      .fix("use_gds", {"false"}, "GPUDirect Storage is not used");
}

void add_old_names(Section<Zero>& zero) {
  const auto cpu_if = [](const config::HjsonNode& node) {
    return read_value<std::optional<bool>>(node, {}).value_or(false) ? C::OffloadDevice::kCpu
                                                                     : C::OffloadDevice::kNone;
  };
  zero.rename(
          "cpu_offload", "old: true is offload_optimizer.device cpu",
          [cpu_if](C& c, const config::HjsonNode& node) { c.zero.offload_optimizer.device = cpu_if(node); })
      .rename("cpu_offload_param", "old: true is offload_param.device cpu",
              [cpu_if](C& c, const config::HjsonNode& node) { c.zero.offload_param.device = cpu_if(node); })
      .fix("cpu_offload_use_pin_memory", {"null"},
           "it is pin_memory in offload_optimizer or offload_param now");
}

void add_fixed_keys(Section<Zero>& zero) {
  const char* quantised = "quantised communication changes the results";
  const char* mics = "a parameter's shards are spread over all ranks, not over groups of them";
  const char* explicit_units = "the program says which modules are units of stage 3";
  zero.fix("contiguous_gradients", {"true"}, "gradients are born in one flat buffer")
      .fix("reduce_scatter", {"true"}, "gradients go only to the rank that owns their shard")
      .fix("allgather_partitions", {"true"}, "shards are gathered, not broadcast one by one")
      .fix("use_multi_rank_bucket_allreduce", {"true"}, "a bucket is reduced for all ranks at once")
      .fix("round_robin_gradients", {"false"}, "every rank owns a part of every bucket already")
      .fix("compute_grad_norm", {"true"}, "the norm costs one number a rank and is always known")
      .fix("load_from_fp32_weights", {"true"}, "a checkpoint's fp32 weights are the ones that are loaded")
      .fix("elastic_checkpoint", {"false", "true"}, "every checkpoint loads on any world size")
      .fix("legacy_stage1", {"false"}, "there is one stage 1")
      .fix("parameter_alignment", {"false"}, "the flat buffers decide about alignment")
      .fix("stage3_module_granularity_threshold", {"0"}, explicit_units,
           {.aliases = {"module_granularity_threshold"}})
      .fix("stage3_use_all_reduce_for_fetch_params", {"false"}, "parameters are all-gathered",
           {.aliases = {"use_all_reduce_for_fetch_params"}})
      .fix("stage3_allgather_sequential", {"false"},
           "a unit's parameters are one flat buffer, gathered at once", {.aliases = {"allgather_sequential"}})
      .fix("memory_efficient_linear", {"true"},
           "backward gathers a unit's weights again instead of keeping them")
      .refuse("leaf_module", {}, explicit_units)
      .fix("override_module_apply", {"true"}, "it is about Python's modules")
      .fix("pipeline_loading_checkpoint", {"false"}, "each rank reads its own ranges of a checkpoint")
      .fix("log_trace_cache_warnings", {"false"},
           "the order of units is fixed, there is no trace to warn about")
      .fix("enable_sanity_checks", {"false"}, "checks are always on")
      .fix("save_muon_momentum_buffer_in_memory", {"false"}, "there is no Muon")
      .fix("zero_hpz_partition_size", {"1"}, mics)
      .fix("zero_quantized_weights", {"false"}, quantised)
      .fix("zero_quantized_nontrainable_weights", {"false"}, quantised)
      .fix("zero_quantized_gradients", {"false"}, quantised)
      .refuse("zeropp_loco_param", {}, quantised)
      .fix("mics_shard_size", {"-1"}, mics)
      .fix("mics_hierarchical_params_gather", {"false"}, mics)
      .refuse("zenflow", {}, "it applies part of the gradients late, which changes the results");
}

}  // namespace

void add_zero_keys(std::vector<Key>& keys) {
  Section<Zero> zero(
      keys, "zero_optimization", [](auto& c) -> auto& { return c.zero; });
  zero.honour("stage", &Zero::stage, "shards: 1 optimizer state, 2 also gradients, 3 also parameters; 0 none",
              {.range = {.least = 0, .most = 3}})
      .honour("reduce_bucket_size", &Zero::reduce_bucket_size,
              "elements reduced at once; the default leaves 25 MiB", {.range = {.least = 1}})
      .honour("allgather_bucket_size", &Zero::allgather_bucket_size,
              "elements gathered at once; the default leaves 25 MiB", {.range = kNotNegative})
      .honour("overlap_comm", &Zero::overlap_comm,
              "reduce during backward; null: true; true: also gather the updates of units during the next "
              "forward")
      .honour("ignore_unused_parameters", &Zero::ignore_unused_parameters,
              "false: a parameter without gradient is an error that names it; so at stage 3 unless the file "
              "says true")
      .honour("sub_group_size", &Zero::sub_group_size,
              "elements of one tile of the optimizer's step at stage 3; the default leaves 25 MiB",
              {.range = {.least = 1}})
      .honour("stage3_prefetch_bucket_size", &Zero::prefetch_bucket_size,
              "the next unit is gathered ahead if it has no more elements; 0: none is",
              {.range = kNotNegative, .aliases = {"prefetch_bucket_size"}})
      .honour("stage3_param_persistence_threshold", &Zero::param_persistence_threshold,
              "smaller parameters are kept whole",
              {.range = kNotNegative, .aliases = {"param_persistence_threshold"}})
      .honour("stage3_model_persistence_threshold", &Zero::model_persistence_threshold,
              "elements that are kept whole, at most",
              {.range = kNotNegative, .aliases = {"model_persistence_threshold"}})
      .honour("stage3_max_live_parameters", &Zero::max_live_parameters,
              "read, but only the default is taken: a unit and the next one are gathered at a time",
              {.range = kNotNegative, .aliases = {"max_live_parameters"}})
      .honour("stage3_max_reuse_distance", &Zero::max_reuse_distance,
              "read, but only the default is taken: a unit is freed after its forward",
              {.range = kNotNegative, .aliases = {"max_reuse_distance"}})
      .honour(
          "stage3_gather_16bit_weights_on_model_save", &Zero::gather_16bit_weights_on_model_save,
          "save_16bit_model gathers the weights",
          {.aliases = {"gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save"}});
  add_fixed_keys(zero);
  add_old_names(zero);
  add_offload_keys(keys);
}

}  // namespace lockstep::deepspeed
