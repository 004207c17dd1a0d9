#pragma once

// Everything a training program needs. Each header below can be included alone.

#include <lockstep/callbacks.h>
#include <lockstep/communicator.h>
#include <lockstep/config.h>
#include <lockstep/data.h>
#include <lockstep/data_parallel.h>
#include <lockstep/deepspeed.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/error.h>
#include <lockstep/image_files.h>
#include <lockstep/images.h>
#include <lockstep/launch.h>
#include <lockstep/model.h>
#include <lockstep/models.h>
#include <lockstep/optim.h>
#include <lockstep/rank_map.h>
#include <lockstep/schedule.h>
#include <lockstep/search.h>
#include <lockstep/sharded.h>
#include <lockstep/track.h>
#include <lockstep/trainer.h>
#include <lockstep/version.h>
#include <lockstep/weights.h>
#include <lockstep/zero.h>
