#include "deepspeed/key.h"

namespace lockstep::deepspeed {

using C = DeepSpeedConfig;

void add_training_keys(std::vector<Key>& keys) {
  constexpr double kMostSamples = 1e12;
  const KeyRules positive = {.range = {.least = 1, .most = kMostSamples}};
  Section<C>(
      keys, "", [](auto& c) -> auto& { return c; })
      .honour("train_batch_size", &C::train_batch_size, "samples of all ranks in one step of the optimizer",
              positive)
      .honour("train_micro_batch_size_per_gpu", &C::train_micro_batch_size_per_gpu,
              "samples of one rank in one forward pass", positive)
      .honour("gradient_accumulation_steps", &C::gradient_accumulation_steps,
              "forward passes for one step of the optimizer", positive)
      .honour("managed_gradient_accumulation", &C::managed_gradient_accumulation,
              "false: the program decides when a step is due, every step() is an update")
      .honour("gradient_clipping", &C::gradient_clipping, "largest norm of all gradients together; 0: off",
              {.range = {.least = 0}})
      .honour("gradient_allreduce_op", &C::gradient_allreduce_op, "mean, or sum up to stage 2")
      .honour("prescale_gradients", &C::prescale_gradients, "divide before the sum instead of after it")
      .honour("gradient_predivide_factor", &C::gradient_predivide_factor,
              "divide by this before the sum, by the rest after it; not with prescale_gradients",
              {.range = {.least = 0, .above = true}})
      .honour("communication_data_type", &C::communication_data_type,
              "dtype of gradients between ranks; null: that of the gradients")
      .honour(
          "zero_allow_untested_optimizer", &C::zero_allow_untested_optimizer,
          "false: under ZeRO only Adam, AdamW, Adagrad and Lion, as in DeepSpeed; there it is the default")
      .honour("zero_force_ds_cpu_optimizer", &C::zero_force_ds_cpu_optimizer,
              "with offload: only optimizers that have a kernel for the CPU")
      .honour("dataloader_drop_last", &C::dataloader_drop_last,
              "refused where true: the program brings its own loader")
      .fix("sparse_gradients", {"false"}, "gradients are reduced dense")
      .fix("disable_allgather", {"false"}, "parameters are gathered, or ranks would differ")
      .fix("disable_python_gc", {"false"}, "there is no Python here")
      .fix("graph_harvesting", {"false"}, "CUDA graphs are an option of the trainer")
      .fix("sequence_parallel_size", {"1"}, "there is no sequence parallelism")
      .fix("seq_parallel_communication_data_type", {"\"fp32\"", "null"}, "there is no sequence parallelism")
      .fix("use_data_before_expert_parallelism", {"false"}, "there are no experts")
      .fix("vocabulary_size", {"null"}, "DeepSpeed only warns about it: remove the line");

  Section<C::ActivationCheckpointing>(
      keys, "activation_checkpointing", [](auto& c) -> auto& { return c.activation_checkpointing; })
      .honour("cpu_checkpointing", &C::ActivationCheckpointing::cpu_checkpointing,
              "refused where true: activations stay where they are")
      .fix("partition_activations", {"false"}, "there is no tensor parallelism to partition over")
      .fix("contiguous_memory_optimization", {"false"}, "LibTorch's allocator keeps the inputs")
      .fix("number_checkpoints", {"null"}, "only contiguous_memory_optimization reads it")
      .fix("synchronize_checkpoint_boundary", {"false"}, "streams order the work; nothing waits at a unit")
      .fix("profile", {"false"}, "wall_clock_breakdown tells the times");

  Section<C::Checkpoint>(
      keys, "checkpoint", [](auto& c) -> auto& { return c.checkpoint; })
      .honour("tag_validation", &C::Checkpoint::tag_validation,
              "ranks save under the same tag: Ignore, Warn or Fail")
      .fix("load_universal", {"false", "true"}, "every checkpoint loads on any world size and stage")
      .fix("use_node_local_storage", {"false"}, "a checkpoint is one folder that all ranks see")
      .fix("parallel_write.pipeline_stage", {"false"}, "there is no pipeline")
      .fix("writer", {"null"}, "the checkpoint's own writer is asynchronous already")
      .fix("checkpoint_serialization", {"true"}, "checkpoints are safetensors files");
}

}  // namespace lockstep::deepspeed
