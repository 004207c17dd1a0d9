// Drives trackers by commands: track_demo FOLDER NAME,NAME... [RESUME_STEP [CLOSE_MS]]
//
// Reads a JSON object a line and answers "ok" when the call has returned:
//   {"op": "scalars", "step": 1, "values": {"loss": 0.5, "lr": "NaN"}}
//   {"op": "hyperparameters", "parameters": {"lr": 0.1}, "metrics": {"loss": 0.5}}
//   {"op": "histogram", "name": "w", "step": 1, "values": [1, 2]}
//   {"op": "image", "name": "i", "step": 1, "height": 1, "width": 1, "channels": 1, "pixels": [0]}
//   {"op": "text", "name": "t", "step": 1, "text": "..."}
//   {"op": "artifact", "path": "..."}
//   {"op": "flush"}
//   {"op": "close", "status": "finished"}
#include <lockstep/error.h>
#include <lockstep/track.h>

#include <cstdlib>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace {

using lockstep::TrackerSet;
using nlohmann::json;

double number(const json& value) {
  if (value.is_number()) return value.get<double>();
  return std::strtod(value.get<std::string>().c_str(), nullptr);
}

lockstep::HyperparameterValue parameter(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number()) return value.get<double>();
  return value.get<std::string>();
}

void write_scalars(TrackerSet& trackers, const json& command) {
  std::vector<std::string> names;
  for (const auto& [name, value] : command["values"].items()) names.push_back(name);
  std::vector<lockstep::Scalar> scalars;
  for (const std::string& name : names) scalars.push_back({name, number(command["values"][name])});
  trackers.write_scalars(scalars, command["step"]);
}

void write_hyperparameters(TrackerSet& trackers, const json& command) {
  lockstep::Hyperparameters parameters;
  for (const auto& [name, value] : command["parameters"].items()) parameters[name] = parameter(value);
  lockstep::FinalMetrics metrics;
  for (const auto& [name, value] : command["metrics"].items()) metrics[name] = number(value);
  trackers.write_hyperparameters(parameters, metrics);
}

void write_histogram(TrackerSet& trackers, const json& command) {
  std::vector<double> values;
  for (const json& value : command["values"]) values.push_back(number(value));
  trackers.write_histogram(command["name"].get<std::string>(),
                           lockstep::Histogram::of(std::span<const double>(values)), command["step"]);
}

void write_image(TrackerSet& trackers, const json& command) {
  trackers.write_image(command["name"].get<std::string>(),
                       {.height = command["height"],
                        .width = command["width"],
                        .channels = command["channels"],
                        .pixels = command["pixels"].get<std::vector<uint8_t>>()},
                       command["step"]);
}

void write_graph(TrackerSet& trackers, const json& command) {
  lockstep::Graph graph;
  for (const json& node : command["nodes"]) {
    graph.push_back({node["name"], node["kind"], node["inputs"].get<std::vector<std::string>>(),
                     node["description"], node["parameters"]});
  }
  trackers.write_graph(graph);
}

void run(TrackerSet& trackers, const json& command) {
  const std::string op = command["op"];
  if (op == "scalars") return write_scalars(trackers, command);
  if (op == "hyperparameters") return write_hyperparameters(trackers, command);
  if (op == "histogram") return write_histogram(trackers, command);
  if (op == "image") return write_image(trackers, command);
  if (op == "text") {
    return trackers.write_text(command["name"].get<std::string>(), command["text"].get<std::string>(),
                               command["step"]);
  }
  if (op == "graph") return write_graph(trackers, command);
  if (op == "artifact") return trackers.log_artifact(command["path"].get<std::string>());
  if (op == "flush") return trackers.flush();
  if (op == "close") {
    return trackers.close(command["status"] == "finished" ? lockstep::RunStatus::kFinished
                                                          : lockstep::RunStatus::kFailed);
  }
  throw std::runtime_error("no such op: " + op);
}

int run_all(int argc, char** argv) {
  lockstep::TrackerOptions options{.folder = argv[1], .resume_step = {}, .run_name = "demo"};
  if (argc > 3 && std::string_view(argv[3]) != "-") options.resume_step = std::stoll(argv[3]);
  if (argc > 4) options.close_timeout = std::chrono::milliseconds(std::stoll(argv[4]));
  std::vector<std::string> names;
  std::istringstream list(argv[2]);
  for (std::string name; std::getline(list, name, ',');) names.push_back(name);

  TrackerSet trackers = TrackerSet::open(names, options);
  for (std::string line; std::getline(std::cin, line);) {
    run(trackers, json::parse(line));
    std::cout << "ok" << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc < 3) throw std::runtime_error("usage: track_demo FOLDER NAMES [RESUME_STEP|- [CLOSE_MS]]");
    return run_all(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
