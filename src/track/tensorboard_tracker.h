#pragma once

#include <lockstep/tracker.h>

#include <memory>
#include <string>
#include <string_view>

namespace lockstep::track {

// A record as TFRecord files hold it: its length, its bytes, and a sum of each.
std::string frame_record(std::string_view record);

// Writes TensorBoard's event file into options.folder. A folder is one run of
// TensorBoard's; a resumed run adds a file, after which TensorBoard forgets what older
// files hold of resume_step and later.
std::unique_ptr<Tracker> make_tensorboard_tracker(const TrackerOptions& options);

}  // namespace lockstep::track
