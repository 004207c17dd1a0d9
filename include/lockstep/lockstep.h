#pragma once

// Everything a training program needs.

#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>
#include <lockstep/dataset.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/loader.h>
#include <lockstep/loss.h>
#include <lockstep/model.h>
#include <lockstep/preemption.h>
#include <lockstep/rank_map.h>
#include <lockstep/sampler.h>
#include <lockstep/train_config.h>
#include <lockstep/trainer.h>
#include <lockstep/version.h>
#include <lockstep/weights.h>
#include <lockstep/world.h>
