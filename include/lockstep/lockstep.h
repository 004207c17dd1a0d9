#pragma once

// Everything a training program needs.

#include <lockstep/adadelta.h>
#include <lockstep/adam_lbfgs.h>
#include <lockstep/callback.h>
#include <lockstep/callbacks.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>
#include <lockstep/data_source.h>
#include <lockstep/dataset.h>
#include <lockstep/error.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/gradient_free.h>
#include <lockstep/launch.h>
#include <lockstep/learning_rate.h>
#include <lockstep/loader.h>
#include <lockstep/loss.h>
#include <lockstep/model.h>
#include <lockstep/models.h>
#include <lockstep/named_tensors.h>
#include <lockstep/optimizer_state.h>
#include <lockstep/parameter_vector.h>
#include <lockstep/preemption.h>
#include <lockstep/python_adam.h>
#include <lockstep/rank_map.h>
#include <lockstep/reduce_on_plateau.h>
#include <lockstep/sampler.h>
#include <lockstep/tracker_set.h>
#include <lockstep/train_config.h>
#include <lockstep/trainer.h>
#include <lockstep/version.h>
#include <lockstep/weight_average.h>
#include <lockstep/weights.h>
#include <lockstep/world.h>
